"""Text chosen by others, made safe to print: no terminal obeys it, and no reader takes it for a line of ours."""


def printable(text: str) -> str:
    """The text in one line; whatever a terminal would not show as a character is escaped as in Python: `\\x1b`.

    Keys, topics, errors and payloads come from anyone who may publish: line breaks in them would forge lines, and
    control characters colour, overwrite and worse. JSON does not need this, and has the text as it is.
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
