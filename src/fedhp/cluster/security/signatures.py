"""Signed bytes: who wrote them, by the certificate of a machine of this federation.

The signature covers the purpose, the time and the content, so that nothing signed for one purpose
passes for another.
"""

from __future__ import annotations

import functools
import json
import time
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedhp.cluster.security.identity import (
    Identity,
    certificate_info,
    check_dates,
    parse_certificate,
    parse_key,
)
from fedhp.errors import IdentityError

MAGIC = b"fedhp-signed 1\n"
CLOCK_SECONDS = 3600.0  # by which the signer's clock may be ahead, as with certificates
_parsed_key = functools.lru_cache(maxsize=4)(parse_key)  # every commit is signed with the same one
_SIGNER = Path("signer.crt")  # not a file: the certificate that came with the content


def sign(identity: Identity, content: bytes, *, purpose: str, now: float | None = None) -> bytes:
    """The content with the signature and the certificate of this machine in front of it."""
    file = identity.folder / f"{identity.name}.crt"
    key = _parsed_key(file, identity.certificate, key=identity.key)
    moment = time.time() if now is None else now
    signature = key.sign(_signed_bytes(purpose, moment, content), ec.ECDSA(hashes.SHA256()))
    head = {
        "purpose": purpose,
        "time": moment,
        "certificate": identity.certificate.decode("ascii"),
        "signature": signature.hex(),
    }
    return MAGIC + json.dumps(head).encode("ascii") + b"\n" + content


def verify(
    signed: bytes, *, authority: bytes, purpose: str, role: str, fresh: bool = False
) -> bytes:
    """The content; IdentityError unless a machine with this role signed it for this purpose.

    The certificate must have been valid when it signed: a run outlives certificates. What was
    signed for this very moment is fresh: then it must be valid now as well.
    """
    if not signed.startswith(MAGIC):
        raise IdentityError("it is not signed")
    line, _, content = signed[len(MAGIC) :].partition(b"\n")
    try:
        head = json.loads(line)
        moment = float(head["time"])
        signature = bytes.fromhex(head["signature"])
        pem = head["certificate"].encode("ascii")
        written_for = str(head["purpose"])
        signed_at = datetime.fromtimestamp(moment, UTC)
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, OSError, RecursionError),
    ):
        raise IdentityError("its signature cannot be read") from None
    if written_for != purpose:
        raise IdentityError(f"it was signed as {written_for[:60]!r}, not as {purpose!r}")
    certificate = parse_certificate(_SIGNER, pem)
    signer = parse_certificate(Path("ca.crt"), authority)
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        raise IdentityError("its signer has a certificate of another authority") from None
    if moment > time.time() + CLOCK_SECONDS:
        raise IdentityError(
            f"it was signed in the future, at {signed_at:%Y-%m-%d %H:%M} UTC by the signer's clock"
        )
    info = certificate_info(_SIGNER, certificate)
    if info.problem:
        raise IdentityError(f"its signer cannot be identified: {info.problem}")
    for moment_of_use in (signed_at, datetime.now(UTC)) if fresh else (signed_at,):
        check_dates(f"the certificate of its signer {info.name}", certificate, moment_of_use)
    if role not in info.roles:
        roles = " and ".join(info.roles) or "without a role"
        raise IdentityError(f"its signer {info.name} is {roles}, not {role}")
    public = certificate.public_key()
    try:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        signed_bytes = _signed_bytes(purpose, moment, content)
        public.verify(signature, signed_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise IdentityError("its signature is wrong: somebody changed it") from None
    return content


def _signed_bytes(purpose: str, moment: float, content: bytes) -> bytes:
    return MAGIC + json.dumps([purpose, moment]).encode("ascii") + b"\n" + content
