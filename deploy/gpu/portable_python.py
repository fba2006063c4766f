"""Relocatable copy of a Python 3.11: runs from any folder of a machine that has glibc and nothing else.

The copy holds the interpreter, the standard library, the headers and the shared libraries that are not glibc's. Run
paths in ELF files become relative to the file ($ORIGIN). An environment variable (LD_LIBRARY_PATH) would leak into
child processes, and a wrapper script would hide the interpreter from `venv`.
"""

import ast
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

NAME = "python3.11"
OLDEST = (3, 11, 1)
# Of glibc and of the compiler's runtime: the target has its own, which must be the one that its driver also uses.
SYSTEM_LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|nsl|BrokenLocale|mvec|gcc_s|stdc\+\+))\.so(\.\d+)*"
)
# Tk's and NIS's modules need libraries of X11 and Kerberos; `config-*` is the static library.
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "site-packages", "test", "tests", "config-*", "idlelib", "turtledemo", "tkinter", "_tkinter.*",
    "nis.*", "_test*", "_ctypes_test.*", "_xxtestfuzz.*", "xxlimited*", "EXTERNALLY-MANAGED", "*.a",
)  # fmt: skip
_PROBE = """
import ensurepip, json, sys
print(json.dumps([sys.prefix, list(sys.version_info[:3]), ensurepip.version()]))
"""
_PREFIX = "@PREFIX@"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29


class NotPortable(Exception):
    """This Python cannot be copied to another machine."""


def copy_python(source: Path, destination: Path) -> None:
    """Copy the Python whose prefix is `source`, and make the copy independent of its place.

    Raises:
        NotPortable
    """
    if source == Path("/usr"):
        raise NotPortable(
            "The Python in /usr is spread over the system. Give --python a relocatable one: "
            "`uv python install 3.11` downloads it, `uv python find 3.11` shows its folder."
        )
    if not (source / "include" / NAME / "Python.h").is_file():
        raise NotPortable(
            f"{source} has no include/{NAME}/Python.h, which Triton compiles with. Give --python another one."
        )
    (destination / "bin").mkdir(parents=True)
    shutil.copy(source / "bin" / NAME, destination / "bin" / NAME)
    for link in ("python3", "python"):
        (destination / "bin" / link).symlink_to(NAME)
    shutil.copytree(source / "lib" / NAME, destination / "lib" / NAME, ignore=LEFT_OUT)
    shutil.copytree(source / "include" / NAME, destination / "include" / NAME, ignore=LEFT_OUT)
    collect_libraries(source, destination)
    relocate_sysconfig(destination)
    check_python(destination)


def find_prefix(folder: Path) -> Path:
    """Folder that has bin/python3.11, at most three levels below; archives differ in what is around it.

    Raises:
        NotPortable
    """
    for pattern in ("", "*/", "*/*/", "*/*/*/"):
        for executable in sorted(folder.glob(f"{pattern}bin/{NAME}")):
            return executable.parent.parent
    raise NotPortable(f"{folder} has no bin/{NAME}. Give --python the folder or archive of a Python 3.11.")


def elf_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def collect_libraries(source: Path, destination: Path) -> None:
    """Copy the shared libraries that the ELF files of a copy need, and point every run path to them."""
    files = list(elf_files(destination))
    libraries = linked_libraries(source / path.relative_to(destination) for path in files)
    for name, path in libraries.items():
        shutil.copy(path, destination / "lib" / name)
    executable = destination / "bin" / NAME
    for file in elf_files(destination):
        libraries_folder = os.path.relpath(destination / "lib", file.parent)
        if not set_run_path(file, f"$ORIGIN/{libraries_folder}") and file == executable and libraries:
            raise NotPortable(
                f"{source / 'bin' / NAME} has no run path, so a copy would not find {', '.join(libraries)}. "
                "Give --python a relocatable one, as `uv python install 3.11` makes it."
            )


def linked_libraries(files: Iterable[Path]) -> dict[str, Path]:
    """Name and path of every shared library that these files load, without the system's.

    Raises:
        NotPortable
    """
    ldd = shutil.which("ldd")
    if ldd is None:
        raise NotPortable("ldd is missing here, so the libraries of this Python are unknown. Install it (libc-bin).")
    listing = subprocess.run([ldd, *files], capture_output=True, text=True).stdout
    libraries = {}
    for name, path in re.findall(r"^\s+(\S+) => (\S.*?)(?: \(0x\w+\))?$", listing, re.MULTILINE):
        if SYSTEM_LIBRARIES.fullmatch(name):
            continue
        if path == "not found":
            raise NotPortable(f"This Python needs {name}, which is not on this machine. Install it.")
        libraries[name] = Path(path)
    return libraries


def set_run_path(file: Path, run_path: str) -> bool:
    """Replace an ELF file's run path in place, and make it a DT_RPATH; False if it has none.

    A DT_RPATH counts for the libraries of libraries too, a DT_RUNPATH does not.

    Raises:
        NotPortable
    """
    data = bytearray(file.read_bytes())
    if data[4:6] != b"\x02\x01":
        raise NotPortable(f"{file.name} is not a 64-bit little-endian ELF file. Give --python another one.")
    segments = _segments(data)
    tags = _dynamic_tags(data, segments)
    strings = next((value for _, tag, value in tags if tag == _DT_STRTAB), 0)
    found = False
    for offset, tag, value in tags:
        if tag not in (_DT_RPATH, _DT_RUNPATH):
            continue
        start = _file_offset(strings + value, segments)
        old = bytes(data[start : data.index(0, start)])
        if len(run_path) > len(old):
            raise NotPortable(f"The run path of {file.name}, {old.decode()}, is too short. Give --python another one.")
        data[start : start + len(old)] = run_path.encode().ljust(len(old), b"\0")
        struct.pack_into("<Q", data, offset, _DT_RPATH)
        found = True
    if found:
        file.chmod(0o755)
        file.write_bytes(data)
    return found


def _segments(data: bytearray) -> list[tuple[int, int, int, int]]:
    """Type, file offset, address and size in the file of every program header."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    return [(kind, offset, address, length) for kind, _, offset, address, _, length in headers]


def _dynamic_tags(data: bytearray, segments: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """File offset, tag and value of every entry of the dynamic section."""
    return [
        (place, *struct.unpack_from("<QQ", data, place))
        for kind, offset, _, length in segments
        if kind == _PT_DYNAMIC
        for place in range(offset, offset + length, 16)
    ]


def _file_offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    return next(
        offset + address - start
        for kind, offset, start, length in segments
        if kind == _PT_LOAD and start <= address < start + length
    )


def relocate_sysconfig(python: Path) -> None:
    """Let sysconfig's variables follow the interpreter: the build's prefix becomes that of the running one."""
    for path in (python / "lib" / NAME).glob("_sysconfigdata_*.py"):
        (literal,) = (
            node.value
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        )
        variables = ast.literal_eval(literal)
        # Not in `/usr/bin/install` where the prefix is `/install`.
        prefix = re.compile(rf"(?:(?<=-[LI])|(?<![\w/.-])){re.escape(variables['prefix'])}(?=[/\s'\"]|$)")
        variables = {
            name: prefix.sub(_PREFIX, value) if isinstance(value, str) else value for name, value in variables.items()
        }
        path.write_text(
            f"import sys as _sys\nbuild_time_vars = {variables!r}\nbuild_time_vars = {{\n"
            f"    name: value.replace({_PREFIX!r}, _sys.base_prefix) if isinstance(value, str) else value\n"
            "    for name, value in build_time_vars.items()\n}\n",
            encoding="utf-8",
        )


def check_python(python: Path) -> None:
    """Run the copy in an empty environment.

    Raises:
        NotPortable
    """
    command = [str(python / "bin" / NAME), "-I", "-B", "-c", _PROBE]
    probe = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/")
    if probe.returncode != 0:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotPortable(f"The copied Python does not run: {last}. Give --python another one.")
    prefix, version, _ = json.loads(probe.stdout)
    if tuple(version) < OLDEST:
        raise NotPortable(f"Python {'.'.join(map(str, version))} is too old. Use 3.11.1 or a newer 3.11.")
    if Path(prefix).resolve() != python.resolve():
        raise NotPortable(f"The copied Python takes its library from {prefix}. Give --python another one.")


def needed_glibc(python: Path) -> tuple[int, int]:
    """Newest version of glibc whose symbols the copy refers to."""
    symbols = (re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes()) for path in elf_files(python))
    return max(((int(major), int(minor)) for found in symbols for major, minor in found), default=(2, 17))
