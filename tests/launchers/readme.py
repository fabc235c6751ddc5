"""The examples that a README gives."""
import re


def code_blocks(path, language=""):
    """The text of each fenced block, or of each in this language."""
    with open(path, encoding="utf-8") as file:
        found = re.findall(r"^```([a-z]*)\n(.*?)^```$", file.read(), re.M | re.S)
    return [text for its, text in found if language in ("", its)]


def yaml_documents(text):
    """What the text says, for the part of YAML that the examples use: mappings, lists, lists in one line, strings."""
    documents = []
    for document in re.split(r"^---$", text, flags=re.M):
        lines = [line for line in document.splitlines() if line.split("#")[0].strip()]
        documents.append(Yaml(lines).block())
    return documents


class Yaml:
    def __init__(self, lines):
        self.lines = [(len(line) - len(line.lstrip()), line.strip()) for line in lines]

    def block(self):
        """What the lines from here on say that are indented alike."""
        indent, first = self.lines[0]
        here = [] if first.startswith("- ") else {}
        while self.lines and self.lines[0][0] == indent and self.lines[0][1].startswith("- ") == isinstance(here, list):
            text = self.lines.pop(0)[1]
            if isinstance(here, list):
                self.lines.insert(0, (indent + 2, text[2:].strip()))
                here.append(self.block() if ":" in text else scalar(self.lines.pop(0)[1]))
                continue
            key, _, value = text.partition(":")
            here[key] = scalar(value.strip()) if value.strip() else self.block()
        if self.lines and self.lines[0][0] > indent:
            raise ValueError(f"not understood: {self.lines[0][1]}")
        return here


def scalar(text):
    if text.startswith("["):
        return [scalar(word.strip()) for word in text[1:-1].split(",")]
    return text[1:-1] if text[0] == text[-1] == '"' else text
