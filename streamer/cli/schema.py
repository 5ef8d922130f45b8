"""The command `schema`: the contract as JSON Schema."""

from typing import Annotated

import typer

from streamer.terminal import print_document, print_lines

app = typer.Typer(add_completion=False)


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A record type, for example turn-row.")
    ] = None,
) -> None:
    """Prints the JSON Schema of a record type.

    Without a name it lists the names.

    The key of an input record is the conversation id, and its partition is murmur2 of the key, as
    Java and aiokafka place it. With librdkafka (confluent-kafka, Go, Node) set
    partitioner=murmur2_random.

    Examples:
        callgauge schema
        callgauge schema turn-row > turn-row.schema.json
    """
    from schemas.json_schemas import SCHEMA_NAMES, json_schema

    if name is None:
        print_lines("\n".join(SCHEMA_NAMES))
    elif name in SCHEMA_NAMES:
        print_document(json_schema(name), indent=2)
    else:
        raise typer.BadParameter(
            f"{name!r} is no record type; there are {', '.join(SCHEMA_NAMES)}."
        )
