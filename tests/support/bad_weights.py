"""Bad adapters with weights that do not fit the base, the declaration or the format: one change each."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.bad_configs import CONFIG, BadAdapter, Change, config

WEIGHTS = "adapter_model.safetensors"

Tensors = dict[str, torch.Tensor]


def _tensors(edit: Callable[[Tensors], Tensors]) -> Change:
    def change(directory: Path) -> None:
        path = directory / WEIGHTS
        tensors = {name: tensor.contiguous() for name, tensor in edit(load_file(path)).items()}
        save_file(tensors, path, metadata={"format": "pt"})

    return change


def _bytes(edit: Callable[[bytes], bytes]) -> Change:
    def change(directory: Path) -> None:
        path = directory / WEIGHTS
        path.write_bytes(edit(path.read_bytes()))

    return change


def _header(edit: Callable[[dict[str, Any]], str]) -> Callable[[bytes], bytes]:
    """Replace the header by ``edit``'s text and keep the tensors' bytes."""

    def rewrite(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = edit(json.loads(raw[8 : 8 + length])).encode()
        return len(header).to_bytes(8, "little") + header + raw[8 + length :]

    return rewrite


def first(tensors: Tensors, kind: str) -> str:
    """Return the first name that ends in ``kind``, of a packed module in layer 0."""
    packed = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    return min(
        name
        for name in tensors
        if ".layers.0." in name and name.endswith(f"{kind}.weight") and name.split(".")[-3] in packed
    )


def _one(kind: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def edit_one(tensors: Tensors) -> Tensors:
        name = first(tensors, kind)
        return tensors | {name: edit(tensors[name])}

    return _tensors(edit_one)


def _renamed(edit: Callable[[str], str]) -> Change:
    return _tensors(lambda tensors: {edit(name): tensor for name, tensor in tensors.items()})


def _dropped(kind: str) -> Change:
    return _tensors(lambda tensors: {name: t for name, t in tensors.items() if name != first(tensors, kind)})


def _added(name: str, tensor: torch.Tensor) -> Change:
    return _tensors(lambda tensors: tensors | {name: tensor})


def _filled(kind: str, value: float) -> Change:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[-1, -1] = value
        return tensor

    return _one(kind, fill)


def _all_of(*changes: Change) -> Change:
    def change(directory: Path) -> None:
        for one in changes:
            one(directory)

    return change


def _head(rank: int) -> Change:
    """Build a LoRA of the LM head with the given sizes."""
    pair = {"A": torch.ones(rank, 64), "B": torch.ones(96, rank)}
    named = {f"base_model.model.lm_head.lora_{side}.weight": tensor for side, tensor in pair.items()}
    return _tensors(lambda tensors: tensors | named)


def _rank_1024(tensors: Tensors) -> Tensors:
    def grow(name: str, tensor: torch.Tensor) -> torch.Tensor:
        shape = (1024, tensor.shape[1]) if "lora_A" in name else (tensor.shape[0], 1024)
        return torch.zeros(shape, dtype=tensor.dtype)

    return {name: grow(name, tensor) for name, tensor in tensors.items()}


def _huge_after_scaling(directory: Path) -> None:
    """Write weights that are finite in every float dtype until the engine multiplies them with the scaling."""
    rank = json.loads((directory / CONFIG).read_text())["r"]
    config(lora_alpha=rank * 16)(directory)
    tensors = load_file(directory / WEIGHTS)
    name = first(tensors, "lora_B")
    tensors[name][0, 0] = torch.finfo(tensors[name].dtype).max
    save_file(tensors, directory / WEIGHTS)


def _zip_pickle(_: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, buffer)
    return buffer.getvalue()


def _zip(_: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    return buffer.getvalue()


def _million_empty_tensors(_: bytes) -> bytes:
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(f'"t{index}":{entry}' for index in range(1_000_000)) + "}").encode()
    return len(header).to_bytes(8, "little") + header


def _twenty_thousand_and_one(_: bytes) -> bytes:
    header = ("{" + ",".join(f'"t{index}":{{}}' for index in range(20_001)) + "}").encode()
    return len(header).to_bytes(8, "little") + header


def _duplicate_first_tensor(header: dict[str, Any]) -> str:
    name = next(name for name in header if name != "__metadata__")
    return json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"


def _rename_first_tensor(new: str) -> Callable[[dict[str, Any]], str]:
    def edit(header: dict[str, Any]) -> str:
        name = next(name for name in header if name != "__metadata__")
        return json.dumps({new if key == name else key: value for key, value in header.items()})

    return edit


def _shift_all_but_first(by: int) -> Callable[[dict[str, Any]], str]:
    """Move every tensor's bytes but the first one's: a hole if ``by`` is positive, an overlap if negative."""

    def edit(header: dict[str, Any]) -> str:
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] > 0:
                entry["data_offsets"] = [offset + by for offset in entry["data_offsets"]]
        return json.dumps(header)

    return edit


def _hole(raw: bytes) -> bytes:
    return _header(_shift_all_but_first(4))(raw) + bytes(4)


def _overlap(raw: bytes) -> bytes:
    return _header(_shift_all_but_first(-4))(raw)[:-4]


def _metadata_number(header: dict[str, Any]) -> str:
    return json.dumps(header | {"__metadata__": {"format": 1}})


def _negative_shape(header: dict[str, Any]) -> str:
    entry = next(entry for name, entry in header.items() if name != "__metadata__")
    entry["shape"] = [-size for size in entry["shape"]]
    return json.dumps(header)


def _overflowing_shape(header: dict[str, Any]) -> str:
    entry = next(entry for name, entry in header.items() if name != "__metadata__")
    entry["shape"] = [2**32, 2**32]
    return json.dumps(header)


_PREFIX = "base_model.model.model."

_SHAPES = {
    "shape smaller than the base's, inputs": BadAdapter(_one("lora_A", lambda t: t[:, :-1]), "shape_mismatch"),
    "shape smaller than the base's, outputs": BadAdapter(_one("lora_B", lambda t: t[:-1]), "shape_mismatch"),
    "shape larger than the base's, inputs": BadAdapter(
        _one("lora_A", lambda t: torch.cat([t, t[:, :1]], dim=1)), "shape_mismatch"
    ),
    "shape larger than the base's, outputs": BadAdapter(
        _one("lora_B", lambda t: torch.cat([t, t[:1]])), "shape_mismatch"
    ),
    "one dimension": BadAdapter(_one("lora_A", lambda t: t.flatten()), "shape_mismatch"),
    "three dimensions": BadAdapter(_one("lora_B", lambda t: t[None]), "shape_mismatch"),
    "declared rank is not the tensors'": BadAdapter(config(r=1), "rank_mismatch"),
    "pattern's rank is not the tensors'": BadAdapter(
        config(rank_pattern=dict.fromkeys(("q_proj", "k_proj", "gate_proj"), 1)), "rank_mismatch"
    ),
    "rank of A is not that of B": BadAdapter(_one("lora_A", lambda t: torch.cat([t, t[:1]])), "rank_mismatch"),
    "rank above every max_lora_rank": BadAdapter(_all_of(config(r=1024), _tensors(_rank_1024)), "rank_too_large"),
    "rank of an unused pattern too large": BadAdapter(config(rank_pattern={"nowhere": 1024}), "rank_too_large"),
}

_PLACES = {
    "prefix three times": BadAdapter(_renamed(lambda name: 2 * "base_model.model." + name), "tensor_name"),
    "half a prefix": BadAdapter(_renamed(lambda name: name.removeprefix("base_model.")), "tensor_name"),
    "two prefixes": BadAdapter(
        _renamed(lambda name: name.removeprefix("base_model.model.") if "lora_A" in name else name), "tensor_name"
    ),
    "a module under two prefixes": BadAdapter(
        _tensors(
            lambda tensors: tensors | {f"base_model.model.{name}": tensor.clone() for name, tensor in tensors.items()}
        ),
        "tensor_name",
    ),
    "adapter's name in the keys": BadAdapter(
        _renamed(lambda name: name.replace(".weight", ".default.weight")), "tensor_name"
    ),
    "module of the other block": BadAdapter(_renamed(lambda name: name.replace("self_attn", "mlp")), "tensor_name"),
    "leading zero in a layer": BadAdapter(_renamed(lambda name: name.replace(".0.", ".00.")), "tensor_name"),
    "layer out of range": BadAdapter(_renamed(lambda name: name.replace(".0.", ".9999.")), "layer_out_of_range"),
    "packed module without lora_A": BadAdapter(_dropped("lora_A"), "incomplete_pair"),
    "packed module without lora_B": BadAdapter(_dropped("lora_B"), "incomplete_pair"),
    "DoRA's magnitude": BadAdapter(
        _added(_PREFIX + "layers.0.self_attn.q_proj.lora_magnitude_vector", torch.ones(4)), "tensor_name"
    ),
    "a bias": BadAdapter(_added(_PREFIX + "layers.0.self_attn.q_proj.lora_B.bias", torch.ones(4)), "tensor_name"),
    "an embedding": BadAdapter(
        _added(_PREFIX + "embed_tokens.lora_embedding_A", torch.ones(2)), "embedding_not_served"
    ),
    "a head": BadAdapter(_added("base_model.model.lm_head.weight", torch.ones(2, 2)), "embedding_not_served"),
    "no tensors": BadAdapter(_tensors(lambda _: {}), "no_tensors"),
    "tensors outside target_modules": BadAdapter(config(target_modules=["o_proj"]), "not_in_target_modules"),
    "tensors of an excluded module": BadAdapter(
        config(exclude_modules=["q_proj", "k_proj", "gate_proj"]), "not_in_target_modules"
    ),
    "tensors outside layers_to_transform": BadAdapter(config(layers_to_transform=[9999]), "not_in_target_modules"),
    "tensors that a list with other names leaves out": BadAdapter(
        config(target_modules=["q_proj", "k_proj", "layers.9999.mlp.up_proj"]), "not_in_target_modules"
    ),
    "the head": BadAdapter(_all_of(_head(8), config(target_modules=["lm_head"])), "head_not_served"),
    "the head without its lora_B": BadAdapter(
        _added("base_model.model.lm_head.lora_A.weight", torch.ones(4, 8)), "incomplete_pair"
    ),
    "an adapted embedding": BadAdapter(
        _added("base_model.model.model.embed_tokens.lora_embedding_B", torch.ones(8, 4)), "embedding_not_served"
    ),
}

_VALUES = {
    "integers": BadAdapter(_one("lora_A", lambda t: t.to(torch.int32)), "unsupported_dtype"),
    "bytes": BadAdapter(_one("lora_B", lambda t: t.to(torch.uint8)), "unsupported_dtype"),
    "float64": BadAdapter(_one("lora_A", lambda t: t.to(torch.float64)), "unsupported_dtype"),
    "float8": BadAdapter(_one("lora_A", lambda t: t.to(torch.float8_e4m3fn)), "unsupported_dtype"),
    "NaN": BadAdapter(_filled("lora_A", float("nan")), "non_finite"),
    "infinity": BadAdapter(_filled("lora_B", float("-inf")), "non_finite"),
    "infinite once scaled": BadAdapter(_huge_after_scaling, "non_finite"),
}

_FILE = {
    "pickle of torch": BadAdapter(_bytes(_zip_pickle), "pickle_format"),
    "pickle in a zip": BadAdapter(_bytes(_zip), "pickle_format"),
    "bare pickle": BadAdapter(_bytes(lambda _: pickle.dumps({"a": 1}, protocol=2)), "pickle_format"),
    "newer pickle": BadAdapter(_bytes(lambda _: pickle.dumps({"a": [1.5] * 9}, protocol=5)), "pickle_format"),
    "empty file": BadAdapter(_bytes(lambda _: b""), "truncated"),
    "header cut": BadAdapter(_bytes(lambda raw: raw[:20]), "truncated"),
    "tensors cut": BadAdapter(_bytes(lambda raw: raw[:-1]), "data_layout"),
    "trailing bytes": BadAdapter(_bytes(lambda raw: raw + b"\0"), "data_layout"),
    "hole": BadAdapter(_bytes(_hole), "data_layout"),
    "overlap": BadAdapter(_bytes(_overlap), "data_layout"),
    "one million empty tensors": BadAdapter(_bytes(_million_empty_tensors), "header_too_long"),
    "20,001 tensors": BadAdapter(_bytes(_twenty_thousand_and_one), "too_many_tensors"),
    "header too long": BadAdapter(_bytes(_header(lambda header: json.dumps(header) + " " * 2**20)), "header_too_long"),
    "header length of 2^63": BadAdapter(_bytes(lambda raw: b"\0" * 7 + b"\x80" + raw[8:]), "header_too_long"),
    "header is a list": BadAdapter(_bytes(_header(lambda header: json.dumps([header]))), "header_not_json"),
    "header after a space": BadAdapter(_bytes(_header(lambda header: " " + json.dumps(header))), "header_not_json"),
    "a tensor twice": BadAdapter(_bytes(_header(_duplicate_first_tensor)), "header_not_json"),
    "path-like name": BadAdapter(_bytes(_header(_rename_first_tensor("../../etc/passwd"))), "tensor_name"),
    "name with a control character": BadAdapter(_bytes(_header(_rename_first_tensor("a\u0001b"))), "tensor_name"),
    "very long name": BadAdapter(_bytes(_header(_rename_first_tensor("a" * 10_000))), "tensor_name"),
    "metadata of numbers": BadAdapter(_bytes(_header(_metadata_number)), "invalid_header"),
    "negative shape": BadAdapter(_bytes(_header(_negative_shape)), "invalid_header"),
    "overflowing shape": BadAdapter(_bytes(_header(_overflowing_shape)), "invalid_header"),
}

BAD_WEIGHTS: dict[str, BadAdapter] = _SHAPES | _PLACES | _VALUES | _FILE
