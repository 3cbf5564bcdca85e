"""How an argument that cannot be served is refused.

Contract
    The message names the argument, what it got and what it needs.
"""


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
