"""Random cases of scripts: the seed of the run, and the time for them. For programs of Catch2 there is seed.h."""
import os
import secrets


def run_seed():
    """The number in KOLO_TEST_SEED. Where the environment has none, the first call draws one and puts it there."""
    return int(os.environ.setdefault("KOLO_TEST_SEED", str(secrets.randbits(32))), 0)


def budget(seconds):
    """These seconds, times KOLO_TEST_BUDGET."""
    return seconds * float(os.environ.get("KOLO_TEST_BUDGET", "1"))
