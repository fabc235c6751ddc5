"""Ranks of one host that lacks something: room for a file, a network, one common time. Those who can go on do; the others are told at once."""
import time

from cases import smoke
from jobs import Case, Programs

REMOTE, SYSTEM = 5, 1
LONG = "60000"  # ms to join, which no rank is to wait out


def shell(script, *words):
    """Words that run the script and then the rank."""
    return [*words, "sh", "-c", f'{script} && exec "$@"', "sh", Programs.rank, "join"]


class Directories(Case):
    """The file by which ranks meet cannot be written."""

    # The library is found even if what lies in /tmp, as this tree may, is hidden.
    ENVIRONMENT = {"KOLO_ROOT": "", "XDG_RUNTIME_DIR": "", "TMPDIR": "", "KOLO_INIT_TIMEOUT_MS": LONG, "LD_LIBRARY_PATH": "src"}

    def expect_told(self, trouble, words):
        network = self.network(1)
        since = time.monotonic()
        script = f"mount -t tmpfs {trouble}"
        ranks = self.start(network, shell(script, "unshare", "-m"), per_host=3, environment=self.ENVIRONMENT)
        for rank in range(3):
            self.expect_failure(ranks, rank, since, 20, (REMOTE if rank > 0 else SYSTEM,), words, "TMPDIR", "KOLO_ROOT")
        for rank in (1, 2):
            self.assertRegex(ranks[rank].output(), "rank 0 .pid .* cannot go on")

    @smoke
    def test_that_are_full_are_told_to_all(self):
        self.expect_told("-o size=4k none /tmp && mkdir -m 700 /tmp/kolo-0 && ! head -c 1M /dev/zero 2> /dev/null > /tmp/all", "No space left on device")

    def test_that_may_not_be_written_are_told_to_all(self):
        self.expect_told("none /tmp && mkdir -m 700 /tmp/kolo-0 && mount -o remount,ro /tmp", "Read-only file system")

    def test_that_one_rank_cannot_use_are_told_to_rank_0(self):
        network = self.network(1)
        since = time.monotonic()
        environment = {**self.ENVIRONMENT, "KOLO_SIZE": "2"}
        ranks = self.start(network, [Programs.rank, "join"], per_host=2, only=[0], environment=environment)
        ranks += self.start(network, shell("mount -t tmpfs none /tmp && mkdir -m 755 /tmp/kolo-0", "unshare", "-m"), per_host=2, only=[1],
                            environment=environment)
        self.expect_failure(ranks, 1, since, 20, (SYSTEM,), "/tmp/kolo-0 is not a directory of user 0 alone")
        self.expect_failure(ranks, 0, since, 20, (REMOTE,), "rank 1 .pid .* /tmp/kolo-0 is not a directory of user 0 alone")


class Networks(Case):
    """There is none, not even loopback."""

    ALONE = {"KOLO_ROOT": "", "KOLO_INIT_TIMEOUT_MS": "20000"}

    @smoke
    def test_are_not_needed_by_one_process(self):
        network = self.network(1)
        self.expect_done(self.start(network, ["unshare", "-n", Programs.rank, "join"], environment=self.ALONE))
        self.expect_done(self.start(network, ["unshare", "-n", Programs.rank, "threads"], environment=self.ALONE))


class Times(Case):
    def test_that_differ_make_no_process_dead(self):
        network = self.network(1)
        environment = {"KOLO_ROOT": "", "KOLO_SIZE": "2", "KOLO_INIT_TIMEOUT_MS": "20000"}
        for other in (0, 1):
            later = ["unshare", "--time", "--boottime", "1000000", "--fork", Programs.rank, "join"]
            ranks = []
            for rank in range(2):
                words = later if rank == other else [Programs.rank, "join"]
                ranks += self.start(network, words, per_host=2, only=[rank], environment=environment)
            self.expect_done(ranks)
