from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from routecodex.protocols.gemini.thinking import seal_signature, unseal_signature
from routecodex.protocols.sealed_signatures import seal

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.text("abc-1", min_size=1), words)
def test_a_seal_is_base64_in_either_alphabet_and_comes_off_again(provider: str, signature: str) -> None:
    sealed = seal_signature(provider, signature)
    assert base64.b64decode(sealed, validate=True)
    assert unseal_signature(sealed) == (provider, signature)
    assert unseal_signature(sealed.replace("+", "-").replace("/", "_").rstrip("=")) == (provider, signature)
    assert unseal_signature(seal(provider, signature)) == (provider, signature)


def test_what_bears_no_seal_is_left_alone() -> None:
    for signature in ("AAAA", "cmN4MS", "cmN4MSo=", "skip_thought_signature_validator"):
        assert unseal_signature(signature) == (None, signature)
        assert seal_signature("", signature) == signature
