"""What can be wrong with bytes that arrive, one name a check."""


class WireError(ValueError):
    """Anything the wire refuses, in either direction."""


class MessageError(WireError):
    """The sender's message does not fit its schema; the text names the tensor."""


class Truncated(WireError):
    """The bytes end before the message does."""


class TrailingBytes(WireError):
    """Bytes are left over after the message, a section or a stream."""


class WrongMagic(WireError):
    """These bytes are something else."""


class WrongVersion(WireError):
    """The format's version is not one this program reads."""


class WrongCodec(WireError):
    """An unknown codec tag, or flags that mean nothing."""


class WrongSchema(WireError):
    """The message was written for a model with other names, shapes or dtypes."""


class WrongReference(WireError):
    """The message was coded given something else than the receiver holds."""


class MissingReference(WrongReference):
    """The message was coded given a reference and the receiver named none."""


class WrongChecksum(WireError):
    """The bytes changed on their way."""


class ImpossibleCount(WireError):
    """A length or a count that cannot be: too large, or not in its shortest form."""


class WrongScale(WireError):
    """A scale that is negative, infinite or not a number."""


class WrongTrit(WireError):
    """A base-3 byte over 242, or padding that is not padding."""


class WrongFrame(WireError):
    """A zstd frame that claims another size, or is none."""


class WrongProbabilities(WireError):
    """What was decoded does not add up to the counts its model was built from."""


class WrongValue(WireError):
    """A value its kind does not have: a bool that is neither 0 nor 1, a code or an exponent out of range."""


class WrongFile(WireError):
    """The header of a .tern file does not describe tensors that this file could hold."""
