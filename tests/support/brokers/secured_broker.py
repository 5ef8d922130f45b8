"""The parts of a secured test broker: listeners with TLS and logins, certificates, users, and an
authorizer.

The broker has four doors on loopback. `open` is plaintext, and every client there is an
administrator, so that tests can look at topics and give rights. `login` wants TLS and one of four
SASL mechanisms, `clear_login` the same without TLS, `mutual` TLS with a client certificate. Clients
of the last three may do nothing without an ACL.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

USER = "callgauge"
PASSWORD = "right-7d1f"  # noqa: S105 - of a broker on loopback that lives as long as a test run
KEY_PASSWORD = "key-7d1f"  # noqa: S105 - as above
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DOORS = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_SSL", "CLEAR_LOGIN": "SASL_PLAINTEXT", "MUTUAL": "SSL"}

_JAAS = "org.apache.kafka.common.security"
_LOGINS = {
    "plain": f'{_JAAS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-256": f"{_JAAS}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_JAAS}.scram.ScramLoginModule required;",
    # Kafka's own validator for tests: it believes any token that is not signed and not expired.
    "oauthbearer": (
        f"{_JAAS}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}


@dataclass(frozen=True)
class SecuredBroker:
    """Where a secured broker is, and the files a client needs.

    Attributes:
        open: `host:port` of the plaintext door, where everybody is an administrator.
        login: Of the door with TLS and SASL.
        clear_login: Of the door with SASL and without TLS.
        mutual: Of the door with TLS and client certificates.
        folder: Holds ca.pem, other-ca.pem (of no one here), client.pem, client.key,
            client-encrypted.key and other-client.pem with other-client.key (signed by the other
            CA).
    """

    open: str
    login: str
    clear_login: str
    mutual: str
    folder: str

    def file(self, name: str) -> str:
        return str(Path(self.folder) / name)

    @classmethod
    def read(cls, line: str) -> "SecuredBroker":
        """The broker that its keeper announced."""
        return cls(**json.loads(line))


def announced(folder: Path, ports: Mapping[str, int]) -> str:
    """The line that `SecuredBroker.read` understands."""
    addresses = {door.lower(): f"127.0.0.1:{ports[door]}" for door in DOORS}
    return json.dumps(asdict(SecuredBroker(**addresses, folder=str(folder))))


def broker_settings(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """Properties beside those of every test broker; writes the certificates they name."""
    write_certificates(folder)
    settings = {
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", *(f"{n}:{p}" for n, p in DOORS.items())]
        ),
        "listeners": ",".join(
            f"{name}://127.0.0.1:{ports[name]}" for name in (*DOORS, "CONTROLLER")
        ),
        "advertised.listeners": ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in DOORS),
        "inter.broker.listener.name": "OPEN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
    }
    for door in ("login", "clear_login"):
        settings[f"listener.name.{door}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        settings |= {
            f"listener.name.{door}.{name}.sasl.jaas.config": module
            for name, module in _LOGINS.items()
        }
    return settings


def format_options() -> list[str]:
    """Options of `StorageTool format` that make the users of both SCRAM mechanisms."""
    mechanisms = [name for name in MECHANISMS if name.startswith("SCRAM")]
    return [
        part
        for name in mechanisms
        for part in ("-S", f'{name}=[name="{USER}",password="{PASSWORD}"]')
    ]


def unsigned_token(subject: str, seconds: float = 3_600) -> str:
    """A JWT without signature that says who comes, and for how long it holds."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + seconds})
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        )
        + "."
    )


def write_certificates(folder: Path) -> None:
    """Writes the files that `SecuredBroker.folder` lists, and broker.pem with key and
    certificates.
    """
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other-ca.pem")
    broker = authority.issue_cert("127.0.0.1", common_name="broker")
    chain = b"".join(blob.bytes() for blob in broker.cert_chain_pems)
    (folder / "broker.pem").write_bytes(_pkcs8(broker) + chain)
    for name, signer in (("client", authority), ("other-client", other)):
        client = signer.issue_cert("client.test", common_name=USER)
        client.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.pem").write_bytes(
            b"".join(blob.bytes() for blob in client.cert_chain_pems)
        )
        if name == "client":
            (folder / "client-encrypted.key").write_bytes(_pkcs8(client, KEY_PASSWORD))


def _pkcs8(certificate: trustme.LeafCert, password: str | None = None) -> bytes:
    """The private key in the form that Kafka reads; trustme's own begins with EC PRIVATE KEY, which
    it refuses.
    """
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
