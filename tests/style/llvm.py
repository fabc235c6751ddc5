"""clang-format and clang-tidy in the release that this tree is checked with: other releases format otherwise, and warn of other things."""
import os
import shutil
import subprocess

import packages

RELEASE = "14.0.6"


def find(program, folder):
    """The path of `program`: this machine's if it is of RELEASE, else one that pip puts into `folder`. packages.Unavailable: neither is there."""
    own = shutil.which(program)
    if own and RELEASE in subprocess.run([own, "--version"], capture_output=True, text=True, check=False).stdout:
        return own
    there = os.path.join(folder, program, program.replace("-", "_"), "data", "bin", program)
    if not os.path.exists(there):
        packages.install(f"{program}=={RELEASE}", os.path.join(folder, program), 300)
    return there
