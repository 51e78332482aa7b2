"""`lbg asyncapi`: what the handlers take, as an AsyncAPI 3 document."""

from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.cli.importing import users_modules
from lbg_runtime.cli.options import Config, Json, group_settings, print_json, prints_all_characters


def asyncapi(
    config: Config = Path("config.yaml"),
    app_version: Annotated[str, typer.Option(help="Version of the application, as stated in the document.")] = (
        "1.0.0"
    ),
    json: Json = False,
) -> None:
    """Print an AsyncAPI 3 document of the handlers: their topics, and their bodies as declared by the annotations.

    The document is YAML, or with --json one JSON object.
    """
    import yaml

    from lbg_runtime.model.errors import ConfigError
    from lbg_runtime.runtime.handlers.asyncapi import asyncapi_document
    from lbg_runtime.runtime.handlers.loading import load_handlers

    settings = group_settings(config)
    if not settings.handlers:
        raise ConfigError("handlers", "none", "modules with handlers, which the document describes")
    with users_modules():
        handlers = load_handlers(settings.handlers)
    document = asyncapi_document(handlers, settings, version=app_version)
    if json:
        print_json(document)
    else:
        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=prints_all_characters()), end="")
