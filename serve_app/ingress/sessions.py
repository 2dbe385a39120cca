"""Sessions that clients name: what a prompt may share with the last one of its session."""

from collections import OrderedDict

from serve_app.api.prompt_prefix import PromptPrefix

MOST_SESSIONS = 65_536
"""Some 10 MB. The one unused for longest is forgotten."""


class Sessions:
    """For each session its last prompt, and how much of that engines found where they were expected to."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """(bytes, share)."""

    def expected(self, prefix: PromptPrefix) -> int:
        """Return the bytes of a prompt that a replica with its session may hold; 0 without a session.

        As much as the last prompt of the session had, until an engine has found less of one.
        """
        if not prefix.session:
            return 0
        size, share = self._known.get(prefix.session, (0, 1.0))
        return min(prefix.size, int(size * share))

    def sent(self, prefix: PromptPrefix) -> None:
        """Note a prompt of a session."""
        if prefix.session:
            _, share = self._known.pop(prefix.session, (0, 1.0))
            self._known[prefix.session] = prefix.size, share
            if len(self._known) > MOST_SESSIONS:
                self._known.popitem(last=False)

    def learn(self, prefix: PromptPrefix, share: float) -> None:
        """Note the share that an engine found of what was expected of a prompt."""
        if prefix.session in self._known:
            self._known[prefix.session] = self._known[prefix.session][0], min(share, 1.0)

    def learn_unexpected(self, prefix: PromptPrefix, share: float) -> None:
        """Note the share of a prompt that an engine found where nothing was expected."""
        if prefix.session in self._known:
            self.learn(prefix, max(share, self._known[prefix.session][1]))
