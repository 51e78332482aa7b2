"""What `format("lbg")` names: a landing log to read, a load-balanced group to write to."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from lbg_runtime.pipeline.spark.source_options import read_source_options

FORMAT = "lbg"


class LbgDataSource(DataSource):
    """Created by Spark under its registered name. Wrong options raise `UserError`."""

    _is_copy = False

    def __setstate__(self, state: dict[str, object]) -> None:
        """Note that it was pickled: for the tasks of a batch Spark makes a new one, for the commit it sends a copy."""
        self.__dict__.update(state, _is_copy=True)

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of a source; a sink takes those it is given."""
        from lbg_runtime.pipeline.spark.source import landing_schema

        return landing_schema(read_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        from lbg_runtime.pipeline.spark.source import LbgBatchReader

        return LbgBatchReader(read_source_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        from lbg_runtime.pipeline.spark.source import LbgStreamReader

        return LbgStreamReader(read_source_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        from lbg_runtime.pipeline.spark.sink import LbgBatchWriter

        return LbgBatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, ARG002
        """`writeStream`; for a commit it reads nothing: what was published does not fail for what cannot be read."""
        from lbg_runtime.pipeline.spark.sink import LbgStreamCommitter, LbgStreamWriter

        if self._is_copy:
            return LbgStreamCommitter()
        return LbgStreamWriter(self.options, schema)
