"""Short descriptions of Ray's errors."""

from __future__ import annotations

from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, ObjectLostError, RayTaskError

from starling.runtime.messages import Fault


def reason_of(error: BaseException | None) -> str:
    """Describe why a Ray actor no longer answers."""
    if error is None:
        return "no reason is known"
    text = str(error)
    if isinstance(error, RayTaskError):
        return text.strip().splitlines()[-1]
    if isinstance(error, ActorDiedError):
        return "its node was lost" if _of_node(text) else "its process died"
    if isinstance(error, ActorUnavailableError | GetTimeoutError):
        return "it cannot be reached"
    if isinstance(error, ObjectLostError):
        return "what it sent was lost with its node"
    return text.strip().splitlines()[0]


def _of_node(text: str) -> bool:
    return "node" in text and any(word in text for word in ("NODE_DIED", "node died", "node has died", "node is dead"))


def fault_of(error: BaseException) -> Fault | None:
    """Return the exception that our code raised in an actor, for `Worker.fault`; None if the error is Ray's."""
    if not isinstance(error, RayTaskError) and not getattr(error, "actor_init_failed", False):
        return None
    text = str(error).strip()
    return Fault(text.splitlines()[-1].strip(), "RunFailedError", text)
