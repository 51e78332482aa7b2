"""An error queue that takes whatever comes."""


class TakingErrorQueue:
    """Keeps delivery, number of attempts and error of what it took."""

    def __init__(self):
        self.taken = []

    async def take(self, handling, report):
        self.taken.append((handling.delivery.delivery_id, report.attempts, report.error))

    @property
    def errors(self):
        return [error for _, _, error in self.taken]
