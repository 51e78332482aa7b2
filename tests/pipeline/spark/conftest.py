"""One Spark session for all tests that need a JVM, which are in one module so that one worker runs them all."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lbg_runtime.pipeline.spark.session import close_spark, open_spark
from tests.pipeline.spark.kills import QUICK_JAVA


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    extra = {
        # One attempt: what fails here fails again, and each failure costs a worker, which takes a second to start.
        "spark.master": "local[2]",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.streaming.pollingDelay": "20",
    }
    session = open_spark("lbg tests", cores=2, driver_memory="1g", java_options=QUICK_JAVA, extra=extra)
    yield session
    close_spark(session)


@pytest.fixture(autouse=True)
def no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever becomes of a test, the next one on the same session finds none of its queries."""
    yield
    if "spark" in request.fixturenames:
        # Not before the test, which may have something to do until a session has started.
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
