"""Request bodies of the inference routes: allowed fields, size caps, and the translation from LoRAX to OpenAI.

Everything here is pure: plain JSON values in, plain JSON values or a :class:`app.domain.errors.TenoraError` out.
"""
