"""Request bodies of the inference routes: what is accepted, within which caps, and how LoRAX's shape maps on OpenAI's.

Everything here is pure: plain JSON values in, plain JSON values or a :class:`app.domain.errors.TenoraError` out.
"""
