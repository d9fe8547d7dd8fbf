"""SASL PLAIN with an API key as the password; the user name may be anything."""

from __future__ import annotations

from lamina.errors import NotAllowed
from lamina.server.kafka.sessions import Call
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

MECHANISM = "PLAIN"


def handshake(call: Call) -> Message:
    """Answers SaslHandshake: PLAIN is what there is."""
    asked = call.request["mechanism"]
    if asked != MECHANISM:
        return {
            "error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "mechanisms": [MECHANISM],
        }
    call.session.mechanism = MECHANISM
    return {"mechanisms": [MECHANISM]}


def authenticate(call: Call) -> Message:
    """Answers SaslAuthenticate; whoever presents a wrong key is told so and disconnected."""
    session = call.session
    if session.mechanism is None:
        session.refused = True
        return {
            "error_code": ErrorCode.ILLEGAL_SASL_STATE,
            "error_message": "a handshake comes first",
        }
    parts = bytes(call.request["auth_bytes"]).split(b"\0")
    key = parts[2].decode(errors="replace") if len(parts) == 3 else None
    try:
        session.caller = call.door.broker.caller(key)
    except NotAllowed as error:
        session.refused = True
        call.door.broker.refusals.note_stranger("kafka", session.host, error)
        return {
            "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
            "error_message": str(error),
        }
    return {}
