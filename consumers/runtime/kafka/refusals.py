"""Explains to a person why a broker cannot be used: the symptom and the remedy.

aiokafka's errors name a symptom. Most causes are in the error they were raised from, or follow from the step that failed.
"""

import asyncio
import socket
import ssl
from typing import Final, NamedTuple

from aiokafka import errors

from consumers.runtime.kafka.security import SecuritySettings
from consumers.runtime.kafka.token_file import TokenError

RIGHTS_PAGE: Final = "deploy/security.md lists what each role needs."

_NAME_MISMATCHES: Final = {62, 64}  # OpenSSL's numbers for a certificate of another host name, of another address
_EXPIRED: Final = 10
_TLS_ALERT_AS_SIZE: Final = 0x1503  # a TLS alert, read as the size of an answer, begins with these two bytes


class NoBrokersError(errors.KafkaError):  # type: ignore[misc]  # the library has no type hints
    """A broker answered without naming any broker of the cluster."""


class UnreachableNamesError(errors.KafkaError):  # type: ignore[misc]  # the library has no type hints
    """A broker answered, and none of the addresses it names for the cluster can be reached."""


class Explanation(NamedTuple):
    """Explanation of an error for a person.

    Attributes:
        seen: The broker's reaction, as the end of a sentence that begins with the broker; or the symptom without an answer.
        remedy: The next steps, as sentences.
        answers: Whether a broker answered at all.
    """

    seen: str
    remedy: str
    answers: bool = True


def explained(error: BaseException, security: SecuritySettings) -> Explanation:
    """Explains the cause of a client's error.

    Args:
        error: An error of aiokafka, of TLS or of the network.
        security: The client's credentials.
    """
    if isinstance(error, TimeoutError | errors.RequestTimedOutError):
        remedy = "Check the address, the network, and that the broker runs and is not overloaded."
        return Explanation("no answer in time", remedy, answers=False)
    if isinstance(
        error, ssl.SSLError | TokenError | errors.BrokerResponseError | NoBrokersError | UnreachableNamesError
    ):
        return _explanation_of(error, security)
    if isinstance(error, errors.KafkaConnectionError) and error.__cause__ is not None:
        return _closed(error.__cause__, security)
    if isinstance(error, ConnectionResetError):
        return _closed(error, security)
    if isinstance(error, socket.gaierror):
        remedy = "Check the address, and the name service of this machine."
        return Explanation("the host name is not known", remedy, answers=False)
    seen = _system_text(error) if isinstance(error, OSError) else _text(error)
    return Explanation(seen, "Check the address, and that the broker runs.", answers=False)


def _explanation_of(error: BaseException, security: SecuritySettings) -> Explanation:
    """Explains an error of TLS, of the login or of a request."""
    match error:
        case ssl.SSLCertVerificationError():
            return _untrusted(error, security)
        case ssl.SSLError():
            return _closed(error, security)
        case TokenError():
            return Explanation(f"asks for a token, and there is {_text(error)}", "Write a fresh token into the file.")
        case errors.SaslAuthenticationFailed():
            detail = str(error.args[0]) if error.args else _text(error)
            return Explanation(
                f"refuses the login of {security.who} with {security.mechanism}: {detail}",
                "Check security.username and the password, and that this user exists there for this mechanism.",
            )
        case errors.UnsupportedSaslMechanismError():
            return Explanation(
                f"does not offer logins with {security.mechanism}", "Choose another security.mechanism, or port."
            )
        case errors.IllegalSaslStateError():
            return Explanation(
                f"has no logins at this port, and security.protocol is {security.protocol}",
                "Set security.protocol without SASL_, or use the port that has logins.",
            )
        case NoBrokersError() if security.token_file is not None:
            return Explanation(
                f"refuses the token in {security.token_file}",
                "Check its issuer, audience and expiry against what the broker accepts.",
            )
        case NoBrokersError():
            return Explanation("names no broker of its cluster", "Wait until the cluster is up, and start again.")
        case UnreachableNamesError():
            why = explained(error.__cause__, security).seen if error.__cause__ is not None else "unreachable"
            return Explanation(
                f"sends us on to {_text(error)}, of which the last one: {why}",
                "Set the broker's advertised.listeners to addresses that can be, for this listener.",
            )
    return _refused(error, security)


def _untrusted(error: ssl.SSLCertVerificationError, security: SecuritySettings) -> Explanation:
    seen = f"shows a certificate that is not accepted: {error.verify_message.rstrip('.')}"
    if error.verify_code in _NAME_MISMATCHES:
        remedy = "Use an address that its certificate names, or have one made that names this address."
    elif error.verify_code == _EXPIRED:
        remedy = "Renew the broker's certificate; if it is good, check the clock here."
    elif security.ca_file is not None:
        remedy = f"Check that {security.ca_file} holds the CA that signed it."
    else:
        remedy = "Set security.ca_file to the CA that signed it; without it the system's CAs are trusted."
    return Explanation(seen, remedy)


def _closed(cause: BaseException, security: SecuritySettings) -> Explanation:
    """Explains a connection that closed before an answer. The cause is unknown, so the likeliest ones are named."""
    protocol = security.protocol
    has_tls = protocol.endswith("SSL")
    if isinstance(cause, asyncio.IncompleteReadError) and (cause.expected or 0) >> 16 == _TLS_ALERT_AS_SIZE:
        return Explanation(
            f"speaks TLS at this port, and security.protocol is {protocol}",
            "Set security.protocol to SSL or SASL_SSL, or use the port without TLS.",
        )
    if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
        alert = (cause.reason or "").lower().replace("_", " ")
        remedy = (
            "Set security.cert_file and security.key_file: this port probably wants a client certificate."
            if security.cert_file is None
            else f"Check that the brokers trust the CA that signed {security.cert_file}, and that it has not expired."
        )
        return Explanation(f"ends the TLS handshake: {alert}", remedy)
    if has_tls and isinstance(cause, ssl.SSLError | ConnectionResetError):
        return Explanation(
            f"does not answer in TLS at this port, and security.protocol is {protocol}",
            "Use the port with TLS, or set security.protocol to one without.",
        )
    return Explanation(
        f"closes the connection without a word, and security.protocol is {protocol}",
        "This port probably wants a login (SASL_), or TLS, or none of it: check security.protocol and the port.",
    )


def _refused(error: BaseException, security: SecuritySettings) -> Explanation:
    """Explains a refusal by the broker."""
    names = sorted(str(name) for arg in getattr(error, "args", ()) for name in _names_in(arg))
    named = ", ".join(names)
    match error:
        case errors.TopicAuthorizationFailedError():
            what = f"the topic{'s' if len(names) > 1 else ''} {named}" if named else "a topic"
        case errors.GroupAuthorizationFailedError():
            what = f"the consumer group {named}" if named else "the consumer group"
        case errors.TransactionalIdAuthorizationFailed():
            what = f"the transactional id {named}" if named else "the transactional id"
        case errors.ClusterAuthorizationFailedError():
            what = "the cluster as a whole in this way"
        case _:
            return Explanation(f"answers with {_text(error)}", "Look into the broker's log for more.")
    return Explanation(f"does not let {security.who} use {what}", f"Give it the right; {RIGHTS_PAGE}")


def _names_in(arg: object) -> tuple[object, ...]:
    return tuple(arg) if isinstance(arg, set | frozenset | list | tuple) else (arg,)


def _system_text(error: OSError) -> str:
    # asyncio's own text names the address, which the sentence has already.
    return "nothing listens there" if isinstance(error, ConnectionRefusedError) else error.strerror or _text(error)


def _text(error: BaseException) -> str:
    shown = "; ".join(str(arg) for arg in error.args) if isinstance(error, errors.KafkaError) else str(error)
    return shown or type(error).__name__
