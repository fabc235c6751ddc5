"""Stopping a process for as long as a test wants it stopped, also where tools/run-tests --busy stops and continues the processes of tests at
random: what lies in the folder KOLO_TEST_STOPS under a process's number is not continued there. stops.h does the same."""
import os
import pathlib
import signal

FOLDER = "KOLO_TEST_STOPS"


def stop(pid):
    if FOLDER in os.environ:
        pathlib.Path(os.environ[FOLDER], str(pid)).touch()
    os.kill(pid, signal.SIGSTOP)
