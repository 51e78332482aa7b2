"""What others chose, as it is printed for people: no terminal obeys it, and no reader takes it for a line of ours."""


def printable(text: str) -> str:
    """The text in one line, with all that a terminal would not show as a character written as Python would: `\\x1b`.

    Keys, topics, errors and payloads come from whoever may publish: line breaks among them would forge lines, control
    characters colour, overwrite and worse. JSON needs none of it, and has the text as it is.
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
