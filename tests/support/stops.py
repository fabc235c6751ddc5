"""Stopping a process for as long as a test wants it stopped, also where tools/run-tests --busy stops and continues the processes of tests at
random: there a process is not continued whose number names a file in the folder KOLO_TEST_STOPS. stops.h does the same."""
import os
import pathlib
import signal

FOLDER = "KOLO_TEST_STOPS"


def stop(pid):
    if os.environ.get(FOLDER):
        pathlib.Path(os.environ[FOLDER], str(pid)).touch()
    os.kill(pid, signal.SIGSTOP)
