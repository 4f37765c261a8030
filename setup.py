"""Builds the native kernels beside the Python package; without a compiler the package installs and works without them.

One shared library holds a variant per instruction set and chooses at run time, so a wheel runs on any machine of its
architecture. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/triforce/native")
X86_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
}
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
# For processors without a variant of their own: a fallback, not worth the time that -O3 takes to compile it.
PORTABLE_FLAGS = ["-O1"]


class BuildKernels(build_ext):
    """Compiles each variant with flags of its own."""

    def build_extension(self, ext: Extension) -> None:
        machine = platform.machine().lower()
        own = X86_FLAGS if machine in X86 else {"neon": []} if machine in ARM else {}
        variants = {"portable": PORTABLE_FLAGS, **own}
        # Apple's compiler comes without OpenMP: there, as where the flag is refused, one thread does all the work.
        if sys.platform != "darwin" and self._builds(ext, variants, ["-fopenmp"]):
            return
        if not self._builds(ext, variants, []):
            print("triforce: native kernels are left out, PyTorch will serve", file=sys.stderr)

    def _builds(self, ext: Extension, variants: dict[str, list[str]], openmp: list[str]) -> bool:
        try:
            self._build(ext, variants, openmp)
        except Exception as error:  # whatever a missing or foreign compiler raises
            print(f"triforce: native kernels {'with' if openmp else 'without'} OpenMP: {error}", file=sys.stderr)
            return False
        return True

    def _build(self, ext: Extension, variants: dict[str, list[str]], openmp: list[str]) -> None:
        flags = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden", "-fPIC"]
        macros: list[tuple[str, str | None]] = [(f"TRIFORCE_{name.upper()}", None) for name in variants]
        jobs = [(f"kernels_{name}.c", [*flags, *extra]) for name, extra in variants.items()]
        jobs += [(source, [*flags, *openmp]) for source in ("drivers.c", "attention.c", "forward.c", "select.c")]

        def compiled(job: tuple[str, list[str]]) -> list[str]:
            source, options = str(NATIVE / job[0]), job[1]
            return self.compiler.compile([source], output_dir=self.build_temp, macros=macros, extra_preargs=options)

        with ThreadPoolExecutor() as pool:
            objects = [object_file for files in pool.map(compiled, jobs) for object_file in files]
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, target, extra_postargs=openmp, libraries=["m"])


setup(
    ext_modules=[Extension("triforce.native._kernels", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
