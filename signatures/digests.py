"""Short digests of JSON values and texts, equal on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def short_digest(value: Any, length: int = 12) -> str:
    """Digest a JSON value into `length` (at most 32) hexadecimal digits; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:length]


def text_digest(text: str, length: int = 12) -> str:
    """Digest a text; lone surrogates count as question marks."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()[:length]


def bounded(key: str, limit: int = 200) -> str:
    """The key itself, or its beginning and a digest of the whole where it is longer than `limit` characters."""
    return key if len(key) <= limit else f"{key[: limit - 20]}…{text_digest(key)}"
