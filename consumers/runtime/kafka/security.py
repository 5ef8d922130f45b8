"""TLS and logins of Kafka."""

import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from consumers.runtime.settings import FromFile, UnusableSecretError, token_in

# Mistakes are found when the settings are read, before anything connects: files are read here, and
# a certificate is loaded with its key. Secrets are never shown, neither by `repr` nor in an error
# or a log line.

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)

MAX_SECRET_CHARS: Final = 1_000
"""Longest user name and password, which is OpenSSL's limit for the password of a key."""
MISTAKES_ERROR: Final = "settings_mistakes"
"""Type of a pydantic error whose context has `mistakes`, a list of `Mistake`."""

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Name = Annotated[str, Field(min_length=1, max_length=MAX_SECRET_CHARS)]
Secret = Annotated[SecretStr, FromFile, Field(min_length=1, max_length=MAX_SECRET_CHARS)]


class Mistake(NamedTuple):
    """One wrong setting.

    Attributes:
        field: Name of the setting.
        text: The fault and the expected value, without the actual value.
    """

    field: str
    text: str


class SecuritySettings(BaseModel):
    """Kind of the brokers' listener, and our credentials for it.

    `settings_mistakes` errors name every value that does not fit the others, or whose file cannot
    be used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    protocol: Protocol = Field(
        "PLAINTEXT",
        examples=["SSL"],
        description="kind of the listener in Kafka's words: SSL is TLS, SASL is a login",
    )
    mechanism: Mechanism | None = Field(
        None, examples=["SCRAM-SHA-512"], description="how to log in"
    )
    username: Name | None = Field(
        None, examples=["callgauge"], description="who logs in with PLAIN or SCRAM"
    )
    password: Secret | None = Field(
        None,
        examples=["file:/run/secrets/kafka-password"],
        description="password of security.username",
    )
    token_file: Path | None = Field(
        None,
        examples=["/run/secrets/kafka-token"],
        description="file with the token for OAUTHBEARER, read again when needed",
    )
    ca_file: Path | None = Field(
        None,
        examples=["/run/secrets/ca.pem"],
        description="CA of the brokers' certificates, PEM; else the system's CAs",
    )
    cert_file: Path | None = Field(
        None,
        examples=["/run/secrets/client.pem"],
        description="our own certificate and its chain, PEM",
    )
    key_file: Path | None = Field(
        None,
        examples=["/run/secrets/client.key"],
        description="private key of security.cert_file, PEM",
    )
    key_password: Secret | None = Field(
        None,
        examples=["file:/run/secrets/key-password"],
        description="password of security.key_file",
    )

    _is_settled: bool = PrivateAttr(default=False)
    _fits: bool = PrivateAttr(default=False)
    _tls: ssl.SSLContext | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _settle(self) -> Self:
        """Reads the files and refuses values that do not fit together, all at once."""
        if self._is_settled:  # an instance that is given to another model passes here again
            return self
        mistakes = (*self._settle_login(), *self._settle_tls())
        if mistakes:
            text = "; ".join(f"{each.field}: {each.text}" for each in mistakes)
            raise PydanticCustomError(
                MISTAKES_ERROR, "{text}", {"text": text, "mistakes": mistakes}
            )
        self._is_settled = True
        return self

    @property
    def who(self) -> str:
        """Our identity at the broker, for messages."""
        if self.username is not None:
            return f"user '{self.username}'"
        if self.token_file is not None:
            return f"the owner of the token in {self.token_file}"
        if self.cert_file is not None:
            return f"the owner of the certificate in {self.cert_file}"
        return "a client without a login (User:ANONYMOUS)"

    def client_options(self) -> dict[str, Any]:
        """Arguments of every client of aiokafka. They contain the password, so do not show them."""
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self._tls is not None:
            options["ssl_context"] = self._tls
        if self.mechanism is not None:
            options["sasl_mechanism"] = self.mechanism
        if self.password is not None:
            options |= {
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password.get_secret_value(),
            }
        if self.token_file is not None:
            from consumers.runtime.kafka.connection import TokenFile  # brings the client

            options["sasl_oauth_token_provider"] = TokenFile(self.token_file)
        return options

    def faststream_options(self) -> dict[str, Any]:
        """The same arguments for a FastStream broker."""
        from faststream.security import (
            BaseSecurity,
            SASLOAuthBearer,
            SASLPlaintext,
            SASLScram256,
            SASLScram512,
        )

        options = self.client_options()
        tls: dict[str, Any] = {"ssl_context": self._tls, "use_ssl": self._tls is not None}
        match self.mechanism:
            case None:
                return {"security": BaseSecurity(**tls)}
            case "OAUTHBEARER":
                token = options["sasl_oauth_token_provider"]
                return {"security": SASLOAuthBearer(**tls), "sasl_oauth_token_provider": token}
        logins = {
            "PLAIN": SASLPlaintext,
            "SCRAM-SHA-256": SASLScram256,
            "SCRAM-SHA-512": SASLScram512,
        }
        login = logins[self.mechanism]
        return {
            "security": login(options["sasl_plain_username"], options["sasl_plain_password"], **tls)
        }

    @property
    def fits(self) -> bool:
        """Whether a broker has let us in with these settings, so that a connection that ends
        without a word was only cut off.
        """
        return self._fits

    def let_in(self) -> None:
        """Notes that a broker has let us in."""
        self._fits = True

    def read_certificates_anew(self) -> Sequence[Mistake]:
        """Lets new connections use the certificates and the key that the files have now. A CA that
        is no more in its file stays known.

        Returns:
            Why they cannot be used; then those from before stay.
        """
        if self._tls is None:
            return ()
        # a file that is half written would spoil the one in use
        tried = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        mistakes = tuple(self._load_files(tried))
        if not mistakes:
            mistakes = tuple(self._load_files(self._tls))
        return mistakes

    def _load_files(self, tls: ssl.SSLContext) -> Iterator[Mistake]:
        if self.ca_file is not None:
            try:
                tls.load_verify_locations(self.ca_file)
            except OSError as error:
                yield Mistake("ca_file", _unreadable(error))
        if self.cert_file is not None and self.key_file is not None:
            yield from self._settle_certificate(tls, self.cert_file, self.key_file)

    def _settle_login(self) -> Iterator[Mistake]:
        has_login = self.protocol.startswith("SASL_")
        if has_login and self.mechanism is None:
            yield Mistake(
                "mechanism",
                f"security.protocol {self.protocol} needs one of {', '.join(MECHANISMS)}",
            )
            return
        if self.mechanism is not None and not has_login:
            yield Mistake(
                "mechanism",
                f"security.protocol {self.protocol} has no login; did you mean SASL_SSL?",
            )
            return
        takes_password = self.mechanism in _PASSWORD_MECHANISMS
        for name, value in {"username": self.username, "password": self.password}.items():
            if takes_password and value is None:
                yield Mistake(name, f"security.mechanism {self.mechanism} needs it")
            elif not takes_password and value is not None:
                reason = (
                    "it is used only with security.protocol SASL_SSL and security.mechanism PLAIN "
                    "or SCRAM"
                )
                yield Mistake(name, reason)
        if self.mechanism == "OAUTHBEARER" and self.token_file is None:
            yield Mistake("token_file", "security.mechanism OAUTHBEARER needs it")
        elif self.token_file is not None and self.mechanism != "OAUTHBEARER":
            yield Mistake("token_file", "it is used only with security.mechanism OAUTHBEARER")
        elif self.token_file is not None:
            try:
                token_in(self.token_file)
            except UnusableSecretError as error:
                yield Mistake("token_file", str(error))

    def _settle_tls(self) -> Iterator[Mistake]:
        if not self.protocol.endswith("SSL"):
            reason = f"security.protocol {self.protocol} has no TLS; did you mean SSL or SASL_SSL?"
            names = ("ca_file", "cert_file", "key_file", "key_password")
            yield from (Mistake(name, reason) for name in names if getattr(self, name) is not None)
            return
        try:
            self._tls = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            yield Mistake("ca_file", _unreadable(error))
        if (self.cert_file is None) != (self.key_file is None):
            missing, given = (
                ("cert_file", "key_file") if self.cert_file is None else ("key_file", "cert_file")
            )
            yield Mistake(missing, f"security.{given} is set: the two belong together")
        elif self.cert_file is not None and self.key_file is not None:
            yield from self._settle_certificate(
                self._tls or ssl.create_default_context(), self.cert_file, self.key_file
            )
        elif self.key_password is not None:
            yield Mistake("key_file", "there is a password for it")

    def _settle_certificate(
        self, tls: ssl.SSLContext, certificate: Path, key: Path
    ) -> Iterator[Mistake]:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=certificate)
        except OSError as error:
            yield Mistake("cert_file", _unreadable(error))
            return
        key_password = self.key_password
        asked = False

        def password() -> str:  # without it OpenSSL would ask for one on the terminal
            nonlocal asked
            asked = True
            return key_password.get_secret_value() if key_password is not None else ""

        try:
            tls.load_cert_chain(certificate, key, password)
        except ssl.SSLError as error:
            if asked:
                refused = ", and this does not open it" if key_password else ""
                yield Mistake("key_password", f"security.key_file is encrypted{refused}")
            elif error.reason == "KEY_VALUES_MISMATCH":
                yield Mistake(
                    "key_file", "it is not the key of the certificate in security.cert_file"
                )
            else:
                yield Mistake("key_file", "expected a private key in PEM form")
        except OSError as error:
            yield Mistake("key_file", _unreadable(error))


def _unreadable(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "expected certificates in PEM form"
    return f"the file cannot be read ({error.strerror})"
