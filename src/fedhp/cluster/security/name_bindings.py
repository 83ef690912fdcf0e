"""Which certificate a name belongs to: where two machines have one name, the newer one counts.

A name is bound to the certificate that it first joined with. One that was issued later takes its
place (a renewal, or another machine), any other one only after an operator has allowed it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedhp.cluster.protocol.guard import Refused

FINGERPRINT_DIGITS = 16  # of SHA-256; all certificates come from one authority
MOST_REPLACED = 8  # certificates of one name that are remembered


@dataclass(frozen=True, slots=True)
class BoundCertificate:
    """The certificate of a name."""

    fingerprint: str
    issued: int  # s since 1970, when it became valid


class NameBindings:
    """The certificates of all names in a run, and those that were replaced."""

    def __init__(self, packed: Mapping[str, Sequence[int | str]] | None = None) -> None:
        """packed: as pack() gave it."""
        self._bound: dict[str, BoundCertificate] = {}
        self._replaced: dict[str, tuple[str, ...]] = {}  # fingerprints by name, the last one first
        self._reopened: set[str] = set()  # names that an operator has allowed
        for name, (fingerprint, issued, *replaced) in (packed or {}).items():
            self._bound[name] = BoundCertificate(str(fingerprint), int(issued))
            self._replaced[name] = tuple(map(str, replaced))

    def pack(self) -> dict[str, list[int | str]]:
        """As JSON, for the next coordinator: fingerprint, time of issue, replaced ones."""
        return {
            name: [bound.fingerprint, bound.issued, *self._replaced.get(name, ())]
            for name, bound in sorted(self._bound.items())
        }

    def reopen(self, name: str) -> None:
        """An operator allows the name: the next other certificate gets it, whatever its age."""
        self._reopened.add(name)

    def admit(self, name: str, pem: bytes) -> bool:
        """Accept the certificate of a caller, or raise Refused; whether it replaces another."""
        shown, bound = _read(pem), self._bound.get(name)
        if bound is None or bound == shown:
            self._bound[name] = shown
            return False
        replaced = self._replaced.get(name, ())
        newer = shown.issued >= bound.issued or name in self._reopened
        if shown.fingerprint in replaced or not newer:
            raise Refused(
                "certificate",
                f"the name {name} belongs to another certificate now, and the one shown is older; "
                f"to use the name here: fedhp certs issue {name} --replace, and copy both files",
            )
        self._reopened.discard(name)
        self._replaced[name] = (bound.fingerprint, *replaced)[:MOST_REPLACED]
        self._bound[name] = shown
        return True


@functools.lru_cache(maxsize=4096)
def _read(pem: bytes) -> BoundCertificate:
    certificate = x509.load_pem_x509_certificate(pem)  # TLS has accepted it
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()[:FINGERPRINT_DIGITS]
    return BoundCertificate(fingerprint, int(certificate.not_valid_before_utc.timestamp()))
