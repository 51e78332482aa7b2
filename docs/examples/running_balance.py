"""Orders in, the running balance of each account out: docs/spark.md tells how to run it.

Reads the landing log of one group, keeps a balance for each account in Spark's state, and publishes every change to
another group, where a handler finds the changes of an account in their order.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from lbg_runtime.pipeline.spark.session import spark_session

ORDER = "account string, cents long"
CHANGE = "account string, orders long, cents long"
STATE = {
    # transformWithState keeps nothing in Spark's default state store.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


class RunningBalance(StatefulProcessor):
    """One account's orders, batch after batch; each gives a change."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._balance = handle.getValueState("balance", "orders long, cents long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        orders, cents = self._balance.get() or (0, 0)
        # Grouping lost the order of the log; the publisher's number of each order within its account brings it back.
        for row in sorted(rows, key=lambda row: row["seq"]):
            orders, cents = orders + 1, cents + row["cents"]
            yield Row(account=key[0], orders=orders, cents=cents)
        self._balance.update((orders, cents))


def changes(spark: SparkSession, landing: Path) -> DataFrame:
    """A row for every order, with the account's balance after it."""
    log = spark.readStream.format("lbg").option("path", str(landing)).option("decode", "utf8").load()
    orders = log.select("seq", f.from_json("payload", ORDER).alias("order")).select("seq", "order.*")
    return orders.groupBy("account").transformWithState(RunningBalance(), CHANGE, "Append", "None")


def publish(frame: DataFrame, config: Path, checkpoint: Path, ledger: Path) -> StreamingQuery:
    """Publish the changes to the group of a settings file, those of an account in order."""
    messages = frame.withColumn("payload", f.to_json(f.struct("account", "orders", "cents")))
    writer = messages.writeStream.format("lbg").option("config", str(config)).option("topic", "balances/changed")
    # After the grouping all changes of an account are in one task, which is what the sink asks for.
    writer = writer.option("keyColumn", "account").option("orderColumn", "orders").option("ledger", str(ledger))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="500 milliseconds").start()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--landing", type=Path, required=True, help="folder of the landing log of the orders")
    parser.add_argument("--config", type=Path, required=True, help="settings of the group of the balances")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True, help="where the validator looks for what was published")
    told = parser.parse_args()
    with spark_session("running balance", extra=STATE) as spark:
        frame = changes(spark, told.landing)
        publish(frame, told.config, told.checkpoint, told.ledger).awaitTermination()


if __name__ == "__main__":
    main()
