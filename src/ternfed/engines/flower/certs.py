"""A federation's own certificates: an authority, the server's certificate, and one key pair per client.

    ca.crt  ca.key       the authority: its certificate goes to every client, its key stays where it is
    server.pem           the server's certificate for its names and addresses
    server.key
    client-0             a client's private key (EC P-384, OpenSSH format, as Flower wants it): for that client alone
    client-0.pub         its public half, which the server registers

Private keys are written with mode 0600 and never leave this module as text.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternfed.engines.flower.errors import NetworkError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 825
"""How long a certificate holds; the longest that common TLS clients accept."""
LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
NAME = re.compile(rf"(\*\.)?{LABEL}(\.{LABEL})*")
"""A name by which a machine is found, in letters that a certificate has for it."""
ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate has: the server's own processes use them."""


@dataclass(frozen=True)
class Certificates:
    """A folder of certificates, by what each file is."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def client_key(self, index: int) -> Path:
        return self.folder / f"client-{index}"

    def public_key(self, index: int) -> Path:
        return self.folder / f"client-{index}.pub"

    def count(self) -> int:
        """So many clients have keys here: client-0.pub, client-1.pub, …"""
        number = 0
        while self.public_key(number).is_file():
            number += 1
        return number

    def need(self, *files: Path) -> None:
        """ValueError where a file is missing, for the server, which has the authority."""
        for file in files:
            if not file.is_file():
                known = (self.folder / "ca.key").is_file() or self.server.is_file()
                how = f"add {self.folder}" if known and file.name.startswith("client-") else f"init {self.folder}"
                raise ValueError(f"{file}: is missing; make it with: ternfed certs {how}")

    def need_from_server(self, *files: Path) -> None:
        """ValueError where a file is missing, for a client, which must not make an authority of its own."""
        for file in files:
            if not file.is_file():
                raise ValueError(f"{file}: is missing; ask whoever runs the server for it and put it there")

    def server_context(self) -> ssl.SSLContext:
        """TLS as the server speaks it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.server, self.server_key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """TLS as a client speaks it: it trusts this authority and no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self.authority)
        return context


def make_certificates(folder: Path, hosts: Sequence[str], clients: int) -> Certificates:
    """A new folder of certificates; one that is there and not empty is left alone."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is no folder; name another, which need not be there yet")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(
            f"{folder}: is there already; ternfed certs add gives it more clients, a new authority needs another folder"
        )
    if clients < 1:
        raise NetworkError(f"clients = {clients}: a whole number of at least 1 is needed")
    names = [_alternative(host) for host in dict.fromkeys([*hosts, *ALWAYS])]  # before anything is written
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Certificates(folder)
    authority_key, authority = _authority()
    _write(made.authority, _pem(authority))
    _write_key(folder / "ca.key", authority_key)
    key = _new_key()
    _write(made.server, _pem(_server_certificate(key, authority_key, authority, names)))
    _write_key(made.server_key, key)
    for index in range(clients):
        _write_client(made, index)
    return made


def add_clients(folder: Path, clients: int) -> tuple[int, int]:
    """Key pairs for so many more clients, numbered on from those that are there; the first and the last of them."""
    made = Certificates(folder)
    if not made.authority.is_file():
        raise NetworkError(f"{folder}: holds no certificates; make them with: ternfed certs init {folder}")
    first = made.count()
    for index in range(first, first + clients):
        _write_client(made, index)
    return first, first + clients - 1


def public_bytes(file: Path) -> bytes:
    """A public key as Flower sends it: PEM."""
    from cryptography.hazmat.primitives import serialization as s

    try:
        key = s.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise NetworkError(f"{file}: is no public key in OpenSSH format ({error})") from error
    return key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


def _new_key() -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise NetworkError("certificates need the extra [flower]: pip install 'ternfed[flower]'") from error
    return ec.generate_private_key(ec.SECP384R1())


def _authority() -> tuple[EllipticCurvePrivateKey, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name("ternfed certificate authority")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    return key, (
        _dated(x509.CertificateBuilder())
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server_certificate(
    key: EllipticCurvePrivateKey, authority_key: EllipticCurvePrivateKey, authority: Any, names: Sequence[Any]
) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _dated(x509.CertificateBuilder())
        .subject_name(_name("ternfed server"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > 253 or not NAME.fullmatch(host):
            raise ValueError(
                f"--host {host}: is no name or address that a certificate can hold; fed.example.org or 192.0.2.10 say, "
                "without https:// and without a port"
            ) from None
        return x509.DNSName(host)


def _name(text: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _dated(builder: Any) -> Any:
    from cryptography import x509

    # An hour back, for clients whose clocks are a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    numbered = builder.serial_number(x509.random_serial_number())
    return numbered.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=DAYS))


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    pem: bytes = certificate.public_bytes(s.Encoding.PEM)
    return pem


def _write_client(made: Certificates, index: int) -> None:
    from cryptography.hazmat.primitives import serialization as s

    key = _new_key()
    _write_key(made.client_key(index), key, openssh=True)
    _write(made.public_key(index), key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH) + b"\n")


def _write_key(file: Path, key: EllipticCurvePrivateKey, *, openssh: bool = False) -> None:
    from cryptography.hazmat.primitives import serialization as s

    layout = s.PrivateFormat.OpenSSH if openssh else s.PrivateFormat.PKCS8
    _write(file, key.private_bytes(s.Encoding.PEM, layout, s.NoEncryption()), mode=0o600)


def _write(file: Path, data: bytes, mode: int = 0o644) -> None:
    # Opened with its mode, so that a private key is at no moment readable by others.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(data)
