"""Makes the wheel of a package folder that tools/build-torch-wheel has put together. What depends on the build comes from the
environment: KOLO_VERSION, and TORCH_VERSION, for which the package was compiled."""

import os

from setuptools import Distribution, setup


class Compiled(Distribution):
    """A package for one Python and one kind of machine."""

    def has_ext_modules(self):
        return True


torch_version = os.environ["TORCH_VERSION"].split("+")[0]
major, minor = torch_version.split(".")[:2]

setup(
    name="kolo-torch",
    version=f"{os.environ['KOLO_VERSION']}+torch{major}.{minor}",
    description="Kolo, a library for collective communication, as a backend of torch.distributed",
    license="Apache-2.0",
    packages=["kolo_torch"],
    package_data={"kolo_torch": ["*.so", "lib/*", "LICENSE"]},
    python_requires=">=3.10",
    install_requires=[f"torch=={major}.{minor}.*"],
    # torch 2.14 and newer look here for a backend that they do not know.
    entry_points={"torch.distributed.backends": ["kolo = kolo_torch:register"]},
    distclass=Compiled,
    zip_safe=False,
)
