"""Select the two adapter files among an archive's members, at the shallowest level that has both.

All other members are skipped unread, but count against the limits. Path traversal, links, duplicates and encrypted
members are refused anywhere: PEFT's users do not pack such archives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.errors import Reason
from adapters.strict_json import show

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

#: Files and folders together.
MAX_MEMBERS = 64

#: Longest path of a member, in bytes.
MAX_PATH = 255

#: Bytes allowed for skipped files, in addition to the limits of the two kept files.
SPARE_BYTES = 64 * 2**20

#: Limit on unpacked bytes per compressed byte, after a grace of RATIO_GRACE bytes. See
#: docs/decisions/0013-limit-the-compression-ratio-of-archives.md.
MAX_RATIO = 100
RATIO_GRACE = 2**20

_PICKLED = frozenset({"adapter_model.bin", "adapter_model.pt", "adapter_model.pth"})

_TOP = "the top"

#: Folder in which macOS stores metadata that a zip file cannot hold.
_MAC_FOLDER = "__MACOSX"


class Broken(Exception):
    """The rest of the archive cannot be read.

    Attributes:
        reason: cause; reasons found earlier remain valid.
    """

    def __init__(self, code: str, found: str, allowed: str, *, field: str = "archive") -> None:
        self.reason = Reason(code, field, found, allowed)
        super().__init__(self.reason.message)


@dataclass(frozen=True, slots=True)
class Member:
    """Member whose name is that of an adapter file.

    Attributes:
        folder: folders above it, outermost first.
    """

    folder: tuple[str, ...]
    name: str
    size: int


class Members:
    """Member list of one archive, checked against the limits as it grows.

    Args:
        caps: size limit of each kept file, in bytes, by name.

    Attributes:
        reasons: every reason found against the archive.
        caps: size limits, as given.
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
        """Register a file of ``size`` bytes, or a folder.

        Returns:
            The file, if it may be one of the adapter's two; None if it is skipped or refused.

        Raises:
            Broken: one member too many, or the total size limit is exceeded.
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
        """Count one more member.

        Raises:
            Broken: one member too many.
        """
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise Broken("too_many_members", f"more than {MAX_MEMBERS} members", f"{MAX_MEMBERS} members")

    def refuse(self, code: str, path: bytes, found: str, allowed: str) -> None:
        """Append a reason against one member."""
        self.reasons.append(Reason(code, shown(path), found, allowed))

    def fits(self, member: Member) -> bool:
        """Return whether the file is within its size limit."""
        return member.size <= self.caps[member.name]

    def finish(self) -> tuple[str, ...] | None:
        """Choose the folder whose two files are kept, once all members are registered.

        Returns:
            The folder; None after a reason is appended.
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
            sentence = f"The archive has {found}. Pack {allowed}."
            self.reasons.append(Reason("missing_member", "archive", found, allowed, sentence))
        for name in self.caps:
            is_refused = any(reason.field.endswith(name) for reason in self.reasons)
            if name in missing and not is_refused and not (self._pickles and name == WEIGHTS_NAME):
                self.reasons.append(Reason("missing_member", name, "nothing", "one file of this name"))

    def _refuse_ambiguous(self, folders: list[tuple[str, ...]]) -> None:
        found = f"{len(folders)} adapters at one level, in {_joined(folders)}"
        self.reasons.append(Reason("several_folders", "archive", found, "one adapter"))

    def _parts(self, path: bytes) -> tuple[str, ...] | None:
        """Split a path into its parts; empty for the top folder.

        For an unsafe path, append a reason and return None.
        """
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
    """Format two folders for display, with a count of the rest."""
    names = [shown("/".join(folder).encode()) if folder else _TOP for folder in folders]
    return " and ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def shown(path: bytes) -> str:
    """Format a member's path for display: short, on one line."""
    text = path[:MAX_PATH].decode("utf-8", "replace")
    return text if text.isprintable() and 0 < len(text) <= 80 else show(text)
