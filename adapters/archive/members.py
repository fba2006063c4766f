"""Which members an archive of a PEFT folder may have, and what becomes of each.

Two are kept, under names that are fixed here; what else PEFT, its trainer, the hub and people's computers put beside
them is passed over by name; everything else is refused. All files lie at the top, or all in one folder.
"""

import re
from collections.abc import Mapping

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

ALLOWED = f"{CONFIG_NAME} and {WEIGHTS_NAME}, at the top or in one folder"

_PICKLED = frozenset({"adapter_model.bin", "adapter_model.pt", "adapter_model.pth"})

_PASSED_OVER = re.compile(
    r"\._.*|\.DS_Store|\.gitattributes|\.gitignore|README\.md|LICENSE(\.md|\.txt)?|NOTICE(\.txt)?|USE_POLICY\.md"
    r"|tokenizer\.json|tokenizer\.model|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json"
    r"|merges\.txt|chat_template\.jinja|chat_template\.json|config\.json|generation_config\.json"
    r"|training_args\.(bin|json)|trainer_state\.json|trainer_log\.jsonl|(all|train|eval)_results\.json"
    r"|optimizer\.(pt|bin)|scheduler\.pt|scaler\.pt|rng_state(_[0-9]{1,4})?\.pth"
)

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


class Members:
    """Takes note of one member after the other.

    Args:
        caps: the size in bytes that each of the kept files may have.

    Attributes:
        reasons: every reason found against the archive.
        kept: names of the files to keep, so far.
    """

    def __init__(self, caps: Mapping[str, int]) -> None:
        self.reasons: list[Reason] = []
        self.kept: set[str] = set()
        self._caps = caps
        self._room = self.most = sum(caps.values()) + SPARE_BYTES
        self._count = 0
        self._seen: set[tuple[str, ...]] = set()
        self._folder: tuple[str, ...] | None = None

    def add(self, path: bytes, size: int, *, is_folder: bool) -> str | None:
        """Take note of a file of ``size`` bytes, or of a folder.

        Returns:
            The name under which to keep the file; None if it is passed over or refused.

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
        return self._place(path, parts, size, is_folder=is_folder)

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

    def finish(self) -> None:
        """All members are known: take note of those that are missing."""
        for name in self._caps:
            if name not in self.kept and not any(reason.field.endswith(name) for reason in self.reasons):
                self.reasons.append(Reason("missing_member", name, "nothing", "one file of this name"))

    def _place(self, path: bytes, parts: tuple[str, ...], size: int, *, is_folder: bool) -> str | None:
        if parts[:1] == (_MAC_FOLDER,):
            return None
        if len(parts) > (1 if is_folder else 2):
            self.refuse("unknown_member", path, "a folder in a folder", ALLOWED)
            return None
        if is_folder:
            return None
        folder, name = parts[:-1], parts[-1]
        if _PASSED_OVER.fullmatch(name):
            return None
        if name not in self._caps:
            self._refuse_unknown(path, name)
        elif self._folder not in (None, folder):
            self.refuse("several_folders", path, "files in several folders", ALLOWED)
        elif size > self._caps[name]:
            self.refuse("member_too_large", path, f"{size} bytes", f"{self._caps[name]} bytes")
        else:
            self._folder = folder
            self.kept.add(name)
            return name
        return None

    def _refuse_unknown(self, path: bytes, name: str) -> None:
        if name in _PICKLED:
            self.refuse("pickle_format", path, "a pickle, which runs code when read", "the safetensors format")
        else:
            self.refuse("unknown_member", path, "a file that is no part of an adapter", ALLOWED)

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


def shown(path: bytes) -> str:
    """A member's path for display: short, on one line."""
    text = path[:MAX_PATH].decode("utf-8", "replace")
    return text if text.isprintable() and 0 < len(text) <= 80 else show(text)
