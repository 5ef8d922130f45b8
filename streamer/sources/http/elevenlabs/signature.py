"""Verifies the signature of ElevenLabs' webhooks: `t=<unix seconds>,v0=<HMAC-SHA256 of "<t>.<body>" in hex>`. Pure.

We do not use the check in ElevenLabs' package. It accepts times of any future, and times such as `1_790` or Arabic digits; it
takes the last of several signatures; it needs the body as text.
"""

import hashlib
import hmac
from typing import Final, Literal, NamedTuple

SIGNATURE_HEADER: Final = "elevenlabs-signature"
MAX_HEADER_BYTES: Final = 1_024
"""Longest header. One signature has 79 bytes; while a secret is exchanged there may be two."""
MAX_SIGNATURES: Final = 4
"""Most signatures of one header. Each is compared, and one that holds is enough."""
MAX_AGE_SECONDS: Final = 1_800
"""Age from which a delivery is refused, as in ElevenLabs' own check: a record of a delivery cannot be sent again later."""
MAX_AHEAD_SECONDS: Final = 300
"""How far the sender's clock may be ahead of ours."""
_MAX_TIME_DIGITS: Final = 12
_HEX_DIGITS: Final = 64

Fault = Literal["malformed", "stale", "ahead", "forged"]


class SignatureError(ValueError):
    """The signature of a delivery does not hold, so nothing in it is believed.

    Attributes:
        fault: The fault, from a closed set, for the metric.
    """

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = fault


class Signature(NamedTuple):
    """The parts of the header.

    Attributes:
        time: The sender's time as written: it is part of the signed text.
        digests: The signatures in hex, one or a few.
    """

    time: bytes
    digests: tuple[bytes, ...]

    @property
    def time_seconds(self) -> int:
        """The sender's time in seconds since 1970."""
        return int(self.time)


def read_signature(header: bytes) -> Signature:
    """Reads the header. Blanks around its parts do not matter, and parts of other schemes are left out.

    Raises:
        SignatureError: It is malformed.

    Example:
        >>> read_signature(b"t=1790000000, v0=" + b"a" * 64).time_seconds
        1790000000
    """
    if len(header) > MAX_HEADER_BYTES:
        raise SignatureError("malformed", f"the header has more than {MAX_HEADER_BYTES} bytes")
    parts = [part.strip(b" \t").partition(b"=") for part in header.split(b",")]
    times = [value for name, _, value in parts if name == b"t"]
    digests = tuple(value for name, _, value in parts if name == b"v0")
    # bytes.isdigit() knows ASCII digits alone, and no underscore.
    if len(times) != 1 or not times[0].isdigit() or len(times[0]) > _MAX_TIME_DIGITS:
        raise SignatureError("malformed", "expected one `t=` with seconds since 1970 in plain digits")
    if not 0 < len(digests) <= MAX_SIGNATURES or any(len(digest) != _HEX_DIGITS for digest in digests):
        raise SignatureError(
            "malformed", f"expected 1 to {MAX_SIGNATURES} parts `v0=`, each with {_HEX_DIGITS} hex digits"
        )
    return Signature(times[0], digests)


def check_time(signature: Signature, now_seconds: float) -> None:
    """Checks the time of a delivery against our clock.

    Raises:
        SignatureError: It is stale, or ahead of our time.
    """
    age_seconds = now_seconds - signature.time_seconds
    if age_seconds > MAX_AGE_SECONDS:
        raise SignatureError("stale", f"it was signed {age_seconds:.0f} s ago, expected at most {MAX_AGE_SECONDS} s")
    if age_seconds < -MAX_AHEAD_SECONDS:
        raise SignatureError("ahead", f"it was signed {-age_seconds:.0f} s ahead of our clock")


class SignedBody:
    """The signature of a body, computed while the body arrives: it need not fit into memory."""

    def __init__(self, signature: Signature, secret: bytes) -> None:
        """Begins with the signed time.

        Args:
            signature: The header of the delivery.
            secret: The secret that ElevenLabs shows when the webhook is made.
        """
        self._signature = signature
        self._mac = hmac.new(secret, signature.time + b".", hashlib.sha256)

    def add(self, piece: bytes) -> None:
        """Adds the next piece of the body."""
        self._mac.update(piece)

    def check(self) -> None:
        """Checks the signature of the whole body.

        Raises:
            SignatureError: No signature of the header is that of this body.
        """
        expected = self._mac.hexdigest().encode()
        # As bytes, because compare_digest raises for text beyond ASCII; all of them, so that time says nothing.
        holding = [digest for digest in self._signature.digests if hmac.compare_digest(digest, expected)]
        if not holding:
            raise SignatureError("forged", "the signature is not that of this body and our secret")
