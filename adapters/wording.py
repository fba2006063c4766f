"""Sentences for people, one for each reason code: what happened, then what to do.

A reason keeps ``field``, ``found`` and ``allowed`` as data. Its sentence comes from this table, by its code.
"""

from collections.abc import Mapping

#: Command that converts a pickle to safetensors. It loads tensors only and runs no code from the file.
CONVERT = (
    'python -c "import torch; from safetensors.torch import save_file; '
    "save_file({k: v.clone().contiguous() for k, v in torch.load('adapter_model.bin', map_location='cpu', "
    "weights_only=True).items()}, 'adapter_model.safetensors')\""
)

PICKLE = (
    "{field} is a pickle, which can run code when it is read: push its folder with `tenora adapters push FOLDER "
    "--adapter NAME --convert`, or convert it with " + CONVERT.replace("{", "{{").replace("}", "}}") + "."
)

_SAVE = "save the adapter again with `model.save_pretrained(FOLDER)`"
_DAMAGED = "upload it again from a file that is whole"
_PACK = "pack it again with `tar -czf` or `zip -r`"
_FORM = "send multipart/form-data with adapter_config.json and adapter_model.safetensors, or with archive"

SENTENCES: Mapping[str, str] = {
    # adapter_config.json
    "config_too_large": "{field} has {found}: PEFT's are far below {allowed}, so upload the file that PEFT saved.",
    "config_not_json": "{field} cannot be read as JSON ({found}): upload the file as PEFT saved it.",
    "invalid_value": "{field} is {found}, but must be {allowed}.",
    "unsupported_feature": "{field} is {found}, but must be {allowed}.",
    "unsupported_peft_type": "peft_type is {found}, but this server serves {allowed}: train a LoRA adapter.",
    "unsupported_init": "init_lora_weights is {found}, but must be {allowed}.",
    "unknown_key": "{field} is not a key of PEFT's LoraConfig 0.21; remove it if it is only about training.",
    "unsafe_pattern": "{field} has {found}: use {allowed}.",
    "invalid_pattern": "{field} has the pattern {found}, which is not {allowed}: correct it, or name the modules.",
    "unsupported_target": "{field} names {found}: use {allowed}.",
    # adapter_model.safetensors
    "pickle_format": PICKLE,
    "truncated": "{field} breaks off after {found}: " + _DAMAGED + ".",
    "header_too_long": "{field} is no safetensors file of an adapter, as it begins with {found}: " + _SAVE + ".",
    "header_not_json": "{field} is damaged, as its header cannot be read ({found}): " + _DAMAGED + ".",
    "invalid_header": "The header entry {field} is {found}, but must be {allowed}: " + _SAVE + ".",
    "data_layout": "{field} is damaged ({found}, expected {allowed}): " + _DAMAGED + ".",
    "too_many_tensors": "{field} has {found} tensors, but may have {allowed}.",
    "no_tensors": "{field} holds no tensor: it needs {allowed}, so " + _SAVE + ".",
    "tensor_name": "{field} is no name of a LoRA tensor of this base, which look like {allowed}: " + _SAVE + ".",
    "embedding_not_served": "{field} is {found}, which this server does not serve: {allowed}.",
    "head_not_served": "The adapter changes lm_head, which this server does not serve: allowed are {allowed}.",
    "unsupported_dtype": "The values of {field} are {found}, but must be one of {allowed}: save them in one of these.",
    "non_finite": "The values of {field} are not finite ({found}): the training diverged, so take an earlier "
    "checkpoint.",
    "layer_out_of_range": "{field} is in {found}, but this base has the layers {allowed}: was it trained on a deeper "
    "base?",
    "incomplete_pair": "{field} has {found}, but needs {allowed}: " + _SAVE + ".",
    "shape_mismatch": "{field} has the {found}, but this base needs {allowed}: was it trained on another base?",
    "rank_mismatch": "{field} has {found}, but must have {allowed}: upload the config and the weights of one save.",
    "rank_too_large": "The adapter has {found}, but may have {allowed}: train with a smaller r, or ask for a larger "
    "limit.",
    "not_in_target_modules": "{field} has {found}, but adapter_config.json allows {allowed}. Upload the config and "
    "the weights of one save.",
    "target_without_tensors": "target_modules names {found}, which has no tensors: name {allowed}.",
    # results on the engine
    "bytes_missing": "The version's bytes are not in the store: upload it again.",
    "load_failed": "The engine could not load the weights: {found}",
    "non_finite_output": "The engine's answers with this adapter are no numbers: check its training and its scaling.",
    "no_effect": "The adapter answers exactly as the base does: was it saved before it was trained? Set "
    "allow_no_effect to publish it nevertheless.",
    "digest_mismatch": "{field} arrived as {found}, but was announced as {allowed}: upload it again.",
    "upload_lost": "The upload's bytes are gone from the store: upload it again.",
    # archives
    "unknown_archive": "The archive is {found}: upload {allowed}.",
    "archive_too_large": "The archive has {found}, but may have {allowed}: pack only the adapter's two files.",
    "too_many_members": "The archive has {found}, but may have {allowed}: pack only the adapter's two files.",
    "several_folders": "The archive holds {found}: pack one of them.",
    "missing_member": "The archive has no {field}: pack the folder that `model.save_pretrained(FOLDER)` wrote.",
    "member_too_large": "{field} has {found}, but may have {allowed}.",
    "duplicate_member": "The archive has several members with the name {field}: " + _PACK + ".",
    "unsafe_path": "The member {field} has {found}: " + _PACK + ".",
    "unsupported_member": "The member {field} is {found}, but must be one of {allowed}.",
    "encrypted_member": "The member {field} is encrypted: pack it without a password.",
    "compression_ratio": "{field} grows too much when it is unpacked ({found}, at most {allowed}): pack only the "
    "adapter's two files.",
    "corrupt_archive": "{field} is damaged ({found}, expected {allowed}): " + _PACK + ".",
    "truncated_archive": "The archive breaks off: " + _DAMAGED + ".",
    "trailing_data": "The archive has {found}: " + _PACK + ".",
    "unsupported_archive": "{field} uses {found}, which is not read here: upload {allowed}.",
    # forms
    "not_multipart": "The body is no form (content-type {found}): " + _FORM + ".",
    "malformed_multipart": "The form cannot be read ({found}): " + _FORM + ".",
    "missing_part": "The form has no part {field}: " + _FORM + ".",
    "unknown_part": "The form has a part with the name {found}: " + _FORM + ".",
    "duplicate_part": "The form has several parts with the name {field}: send it once.",
    "unexpected_part": "The form has {field} and an archive: send one or the other.",
    "too_many_parts": "The form has {found}: " + _FORM + ".",
}

_OTHERS = "{field}: found {found}, allowed {allowed}"


def sentence_of(code: str, *, field: str, found: str, allowed: str) -> str:
    """Return the sentence for a reason code; for an unknown code, the plain data."""
    return SENTENCES.get(code, _OTHERS).format(field=field, found=found, allowed=allowed)
