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
    "{field} is a pickle, which can run code when it is read. Push its folder with `tenora adapters push FOLDER "
    "--adapter NAME --convert`, or convert it with " + CONVERT.replace("{", "{{").replace("}", "}}") + "."
)

_SAVE = "Save the adapter again with `model.save_pretrained(FOLDER)`."
_DAMAGED = "Upload it again from an undamaged copy."
_SAME_SAVE = "Upload the config and the weights of the same save."
_THIS_BASE = "Check that the adapter was trained on this base."
_PACK = "Pack it again with `tar -czf` or `zip -r`."
_TWO_FILES = "Pack only the adapter's two files."
_FORM = "Send multipart/form-data with adapter_config.json and adapter_model.safetensors, or with archive."

SENTENCES: Mapping[str, str] = {
    # adapter_config.json
    "config_too_large": "{field} has {found}; the limit is {allowed}. Upload the file that PEFT saved.",
    "config_not_json": "{field} cannot be parsed as JSON ({found}). Upload the file as PEFT saved it.",
    "invalid_value": "{field} is {found}, but must be {allowed}.",
    "unsupported_feature": "{field} is {found}, but must be {allowed}. Train the adapter again with an allowed value.",
    "unsupported_peft_type": "peft_type is {found}, but must be {allowed}. Train a LoRA adapter with PEFT.",
    "unsupported_init": "init_lora_weights is {found}, but must be {allowed}.",
    "unknown_key": "{field} is not a key of PEFT's LoraConfig 0.21. Remove it if it only affects training.",
    "unsafe_pattern": "{field} has {found}. Use {allowed}.",
    "invalid_pattern": "{field} has the pattern {found}, which is not {allowed}. Correct it, or list the modules.",
    "unsupported_target": "{field} names {found}, which this server does not serve. Use {allowed}.",
    # adapter_model.safetensors
    "pickle_format": PICKLE,
    "truncated": "{field} is truncated after {found}. Upload the whole file again.",
    "header_too_long": "{field} begins with {found}; the limit is {allowed}. " + _SAVE,
    "header_not_json": "The header of {field} cannot be parsed ({found}). " + _DAMAGED,
    "invalid_header": "The header entry {field} holds {found}, but must hold {allowed}. " + _SAVE,
    "data_layout": "{field} is damaged ({found}; expected {allowed}). " + _DAMAGED,
    "too_many_tensors": "{field} has {found} tensors; the limit is {allowed}. Save only the adapter's LoRA tensors.",
    "no_tensors": "{field} has {found}, but needs {allowed}. " + _SAVE,
    "tensor_name": "{field} is not the name of a LoRA tensor of this base. Expected: {allowed}. " + _SAVE,
    "embedding_not_served": "{field} is {found}, which this server does not serve. Use {allowed}.",
    "head_not_served": "The adapter changes lm_head, which this server does not serve. Train without it, or ask the "
    "operator to set TENORA_ENGINE__LORA_HEAD.",
    "unsupported_dtype": "The tensor {field} has the dtype {found}, but must have one of {allowed}. Convert it, and "
    "save the adapter again.",
    "non_finite": "The tensor {field} has values that are not finite when the engine loads them ({found}). The "
    "training probably diverged: use an earlier checkpoint.",
    "layer_out_of_range": "{field} is in {found}, but this base has only the layers {allowed}. " + _THIS_BASE,
    "incomplete_pair": "{field} has {found}, but needs {allowed}. " + _SAVE,
    "shape_mismatch": "{field} has the {found}, but this base needs {allowed}. " + _THIS_BASE,
    "rank_mismatch": "{field} has {found}, but must have {allowed}. " + _SAME_SAVE,
    "rank_too_large": "The adapter has {found}, but may have {allowed}. Train with a smaller r, or ask the operator "
    "for a larger limit.",
    "not_in_target_modules": "{field} has {found}, but adapter_config.json allows {allowed}. " + _SAME_SAVE,
    "target_without_tensors": "target_modules names {found}, which has no tensors and no effect. Remove it.",
    # results on the engine
    "bytes_missing": "The version's bytes are not in the store. Upload it again.",
    "load_failed": "The engine could not load the weights. Check the adapter, then upload it again.",
    "non_finite_output": "The engine's answers with this adapter are not finite numbers. Check its training and its "
    "scaling.",
    "no_effect": "The adapter answers exactly as the base does. Check that it was saved after training, or set "
    "allow_no_effect to publish it anyway.",
    "digest_mismatch": "{field} arrived with {found}; expected {allowed}. Upload it again.",
    "upload_lost": "The upload's bytes are no longer in the store. Upload it again.",
    # archives
    "unknown_archive": "The archive has an unknown format: it is {found}. Upload {allowed}.",
    "archive_too_large": "The archive has {found}; the limit is {allowed}. " + _TWO_FILES,
    "too_many_members": "The archive has {found}; the limit is {allowed}. " + _TWO_FILES,
    "several_folders": "The archive holds {found}. Pack only one of them.",
    "missing_member": "The archive has no {field}. Pack the folder that `model.save_pretrained(FOLDER)` wrote.",
    "member_too_large": "{field} has {found}; the limit is {allowed}.",
    "duplicate_member": "The archive has several members with the name {field}. " + _PACK,
    "unsafe_path": "The member {field} has {found}, but must have {allowed}. " + _PACK,
    "unsupported_member": "The member {field} is not supported ({found}). Use {allowed}.",
    "encrypted_member": "The member {field} is encrypted. Pack it without a password.",
    "compression_ratio": "The compression ratio of {field} is too high ({found}; the limit is {allowed}). "
    + _TWO_FILES,
    "corrupt_archive": "{field} is damaged ({found}; expected {allowed}). " + _PACK,
    "truncated_archive": "The archive is truncated. " + _DAMAGED,
    "trailing_data": "The archive has {found}. " + _PACK,
    "unsupported_archive": "{field} uses {found}, which is not supported. Upload {allowed}.",
    # forms
    "not_multipart": "The body is not a form (content-type {found}). " + _FORM,
    "malformed_multipart": "The form cannot be parsed ({found}). " + _FORM,
    "missing_part": "The form has no part {field}. " + _FORM,
    "unknown_part": "The form has the unknown part {found}. " + _FORM,
    "duplicate_part": "The form has several parts with the name {field}. Send it once.",
    "unexpected_part": "The form has {field} and an archive. Send one or the other.",
    "too_many_parts": "The form has {found}. " + _FORM,
    # fields of a request
    "missing": "{field} is missing. Send a value for it.",
    "extra_forbidden": "{field} is not a field of this request. Remove it.",
    "json_invalid": "The body cannot be parsed as JSON ({found}). Send {allowed}.",
}

_OTHERS = "{field} is {found}. Expected: {allowed}."


def sentence_of(code: str, *, field: str, found: str, allowed: str) -> str:
    """Return the sentence for a reason code; for an unknown code, a general one."""
    return SENTENCES.get(code, _OTHERS).format(field=field, found=found, allowed=allowed)
