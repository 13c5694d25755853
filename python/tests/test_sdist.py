# SPDX-License-Identifier: MIT
"""What an sdist contains, which the hook of pip's build backend writes: pip install 'scikit-build-core>=1.0'."""

import pathlib
import posixpath
import re
import tarfile

import nprf
import pytest

package = pathlib.Path(__file__).parents[1]
project = package.parent
headers = project / "include" / "nprf"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """{name: bytes} of the files, without the folder of the version."""
    build = pytest.importorskip("scikit_build_core.build", reason="scikit-build-core is not installed")
    if not headers.exists():
        pytest.skip("this is not a clone of the repository")
    folder = tmp_path_factory.mktemp("sdist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(package)
        name = build.build_sdist(str(folder))
    assert name == f"nprf-{nprf.__version__}.tar.gz"
    found = {}
    with tarfile.open(folder / name) as files:
        for each in files:
            assert each.isfile(), each.name
            first, _, rest = each.name.partition("/")
            assert first == f"nprf-{nprf.__version__}"
            found[rest] = files.extractfile(each).read()
    return found


def sources(folder, *patterns):
    return {path for pattern in patterns for path in folder.rglob(pattern) if "__pycache__" not in path.parts}


def test_it_has_all_that_is_compiled(sdist):
    copied = {
        **{path: path.relative_to(project) for path in sources(headers.parent, "*.hpp", "*.cuh", "*.md")},
        **{path: path.relative_to(project) for path in sources(project / "cmake" / "instances", "*.cpp")},
        **{path: path.relative_to(package) for path in sources(package / "src", "*.*")},
        **{path: path.relative_to(package) for path in sources(package / "nprf", "*.py", "*.pyi", "py.typed")},
        **{path: path.relative_to(package) for path in sources(package / "tests", "*.py")},
        project / "cmake" / "levels" / "processor_level.h": "cmake/levels/processor_level.h",
        project / "cmake" / "threads.cmake": "cmake/threads.cmake",
        project / "LICENSE": "LICENSE",
        package / "CMakeLists.txt": "CMakeLists.txt",
        package / "README.md": "README.md",
        package / "pyproject.toml": "pyproject.toml",
    }
    assert len(copied) > 200
    for path, name in copied.items():
        assert sdist[str(name)] == path.read_bytes(), name
    assert set(sdist) == {*map(str, copied.values()), "PKG-INFO"}  # and nothing else


def test_what_its_files_include_is_in_it(sdist):
    """Files in quotes are those of the project, but for the header of XLA."""
    folders = ["include", "src", "src/cuda", "src/jax", "cmake/levels"]
    for name, text in sdist.items():
        if pathlib.Path(name).suffix not in {".hpp", ".cuh", ".cpp", ".cu", ".c", ".h"}:
            continue
        for included in re.findall(rb'^ *# *include "(.*?)"', text, re.MULTILINE):
            places = [posixpath.join(folder, included.decode()) for folder in (posixpath.dirname(name), *folders)]
            is_there = any(posixpath.normpath(place) in sdist for place in places)
            assert is_there or included == b"xla/ffi/api/ffi.h", (name, included)


def test_what_cmake_names_is_in_it(sdist):
    for name in ("CMakeLists.txt", "src/cuda/module.cmake"):
        for each in re.findall(rb"\b(?:src|cmake)/[\w/]+\.\w+", sdist[name]):
            assert each.decode() in sdist, (name, each)


def test_its_metadata(sdist):
    text = sdist["PKG-INFO"].decode()
    for line in ("Name: nprf", f"Version: {nprf.__version__}", "License-Expression: MIT", "Requires-Python: >=3.9"):
        assert f"\n{line}\n" in text, line
