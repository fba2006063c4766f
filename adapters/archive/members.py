"""Which members of an archive are taken: the two files of an adapter, at the shallowest level that has both.

Everything else is passed over unread, but counts against the limits. A path that leads elsewhere, a link, a duplicate
or an encrypted member is refused wherever it is: an archive with one is not what PEFT's users pack.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.errors import Reason
from adapters.strict_json import show

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

#: Files and folders together.
MAX_MEMBERS = 64

#: What a member's path may have, in bytes.
MAX_PATH = 255

#: Bytes that the files which are passed over may have beyond the room of the two that are kept.
SPARE_BYTES = 64 * 2**20

#: Times as many bytes as there were compressed: floats shrink to a half at best, all zeros to a thousandth.
MAX_RATIO = 100
RATIO_GRACE = 2**20

_PICKLED = frozenset({"adapter_model.bin", "adapter_model.pt", "adapter_model.pth"})

_TOP = "the top"

#: Where macOS keeps what its zip files cannot.
_MAC_FOLDER = "__MACOSX"


class Broken(Exception):
    """The archive cannot be read any further.

    Attributes:
        reason: why; the reasons found before it stand.
    """

    def __init__(self, code: str, found: str, allowed: str, *, field: str = "archive") -> None:
        self.reason = Reason(code, field, found, allowed)
        super().__init__(self.reason.message)


@dataclass(frozen=True, slots=True)
class Member:
    """A file with the name of one of an adapter's two.

    Attributes:
        folder: the folders above it, outermost first.
    """

    folder: tuple[str, ...]
    name: str
    size: int


class Members:
    """Takes note of one member after the other.

    Args:
        caps: the size in bytes that each of the kept files may have.

    Attributes:
        reasons: every reason found against the archive.
        caps: as given.
    """

    def __init__(self, caps: Mapping[str, int]) -> None:
        self.reasons: list[Reason] = []
        self.caps = caps
        self._room = self.most = sum(caps.values()) + SPARE_BYTES
        self._count = 0
        self._seen: set[tuple[str, ...]] = set()
        self._found: dict[tuple[str, ...], dict[str, Member]] = {}
        self._pickles: list[tuple[str, ...]] = []

    def add(self, path: bytes, size: int, *, is_folder: bool) -> Member | None:
        """Take note of a file of ``size`` bytes, or of a folder.

        Returns:
            The file, if it may be one of the adapter's two; None if it is passed over or refused.

        Raises:
            Broken: one member too many, or no room for its bytes.
        """
        self.count()
        parts = self._parts(path)
        if size > self._room:
            raise Broken("archive_too_large", f"more than {self.most} bytes unpacked", f"{self.most} bytes")
        self._room -= size
        if parts is None:
            return None
        if parts in self._seen:
            self.refuse("duplicate_member", path, "another member of this name", "one member of this name")
            return None
        self._seen.add(parts)
        return None if is_folder or _MAC_FOLDER in parts else self._note(parts, size)

    def count(self) -> None:
        """There is one member more.

        Raises:
            Broken: one too many.
        """
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise Broken("too_many_members", f"more than {MAX_MEMBERS} members", f"{MAX_MEMBERS} members")

    def refuse(self, code: str, path: bytes, found: str, allowed: str) -> None:
        """Take note of a reason against one member."""
        self.reasons.append(Reason(code, shown(path), found, allowed))

    def fits(self, member: Member) -> bool:
        """Whether the file is within its cap."""
        return member.size <= self.caps[member.name]

    def finish(self) -> tuple[str, ...] | None:
        """All members are known: choose the folder whose two files are kept.

        Returns:
            The folder; None after a reason is noted.
        """
        whole = sorted(
            (folder for folder, files in self._found.items() if len(files) == len(self.caps)),
            key=lambda folder: (len(folder), folder),
        )
        if not whole:
            self._refuse_incomplete()
            return None
        level = [folder for folder in whole if len(folder) == len(whole[0])]
        if len(level) > 1:
            self._refuse_ambiguous(level)
            return None
        for member in self._found[whole[0]].values():
            if not self.fits(member):
                path = "/".join((*member.folder, member.name)).encode()
                self.refuse("member_too_large", path, f"{member.size} bytes", f"{self.caps[member.name]} bytes")
        return whole[0]

    def _note(self, parts: tuple[str, ...], size: int) -> Member | None:
        folder, name = parts[:-1], parts[-1]
        if name in _PICKLED:
            self._pickles.append(parts)
        if name not in self.caps:
            return None
        member = self._found.setdefault(folder, {})[name] = Member(folder, name, size)
        return member

    def _refuse_incomplete(self) -> None:
        if self._pickles:
            path = min(self._pickles, key=lambda parts: (len(parts), parts))
            found, allowed = "a pickle, which runs code when read", "the safetensors format"
            self.refuse("pickle_format", "/".join(path).encode(), found, allowed)
        missing = set(self.caps).difference(*self._found.values())
        if not missing and not self.reasons:
            folders = _joined(sorted(self._found, key=lambda folder: (len(folder), folder)))
            found, allowed = f"the two files apart, in {folders}", f"{CONFIG_NAME} and {WEIGHTS_NAME} in one folder"
            sentence = f"The archive has {found}: pack {allowed}."
            self.reasons.append(Reason("missing_member", "archive", found, allowed, sentence))
        for name in self.caps:
            told = any(reason.field.endswith(name) for reason in self.reasons)
            if name in missing and not told and not (self._pickles and name == WEIGHTS_NAME):
                self.reasons.append(Reason("missing_member", name, "nothing", "one file of this name"))

    def _refuse_ambiguous(self, folders: list[tuple[str, ...]]) -> None:
        found = f"{len(folders)} adapters at one level, in {_joined(folders)}"
        self.reasons.append(Reason("several_folders", "archive", found, "one adapter"))

    def _parts(self, path: bytes) -> tuple[str, ...] | None:
        """The path's parts, none for the top itself; or None after its reason is noted."""
        fault, text = "", ""
        try:
            text = path.decode("utf-8")
        except UnicodeDecodeError:
            fault = "bytes that are not UTF-8"
        parts = text.removeprefix("./").removesuffix("/").split("/")
        if text in {".", "./"}:
            parts = []
        if len(path) > MAX_PATH:
            fault = f"a path of {len(path)} bytes"
        elif not fault and not text.isprintable():
            fault = "a path with control characters"
        elif not fault and ("\\" in text or ":" in text):
            fault = "a path with a backslash or a colon"
        elif any(part in {"", ".", ".."} for part in parts):
            fault = "a path that is absolute, empty or leads elsewhere"
        if fault:
            self.refuse("unsafe_path", path, fault, f"a plain relative path of at most {MAX_PATH} bytes")
            return None
        return tuple(parts)


def _joined(folders: list[tuple[str, ...]]) -> str:
    """Two folders for display, and how many others there are."""
    names = [shown("/".join(folder).encode()) if folder else _TOP for folder in folders]
    return " and ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def shown(path: bytes) -> str:
    """A member's path for display: short, on one line."""
    text = path[:MAX_PATH].decode("utf-8", "replace")
    return text if text.isprintable() and 0 < len(text) <= 80 else show(text)
