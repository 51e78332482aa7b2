"""Spans that are kept in memory, as the SDK's exporter has them."""

from typing import Self

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lbg_runtime.metrics.spans import MessageSpans
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

SHAPE = GroupShape(GroupName("orders"), hash_prefix="h", hash_count=8, queue_count=4)


class KeptSpans:
    """A tracer provider of its own, and what it was given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @classmethod
    def of_process(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Those of the global tracer provider, in the place of the one that a program would set up."""
        spans = cls()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
        return spans

    def make(self, *, has_keys: bool = False) -> MessageSpans:
        return MessageSpans(SHAPE, has_keys=has_keys, provider=self.provider)

    @property
    def ended(self):
        """In the order of their ends."""
        return self._exporter.get_finished_spans()
