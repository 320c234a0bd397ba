from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from routecodex.protocols.gemini.thinking import seal_signature, unseal_signature
from routecodex.protocols.sealed_signatures import seal

signatures = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.text("abc-1", min_size=1), signatures)
def test_a_sealed_signature_is_base64_in_either_alphabet_and_can_be_unsealed(
    provider: str, signature: str
) -> None:
    sealed = seal_signature(provider, signature)
    assert base64.b64decode(sealed, validate=True)
    assert unseal_signature(sealed) == (provider, signature)
    assert unseal_signature(sealed.replace("+", "-").replace("/", "_").rstrip("=")) == (provider, signature)
    assert unseal_signature(seal(provider, signature)) == (provider, signature)


def test_unsealed_signatures_stay_as_they_are() -> None:
    for signature in ("AAAA", "cmN4MS", "cmN4MSo=", "skip_thought_signature_validator"):
        assert unseal_signature(signature) == (None, signature)
        assert seal_signature("", signature) == signature
