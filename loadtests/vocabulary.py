"""What prompts are made of, for any model: no tokenizer is asked, because that would wake one at zero."""

from __future__ import annotations

TOKEN_IDS = tuple(range(1000, 2000))
"""Ordinary tokens of every vocabulary there is. Below may lie special and byte tokens (a thousand of them in
Mistral's Tekken); the smallest vocabularies end above."""

_TEXT = """
about above across after again air all almost along also always an and animals another answer any
are around as asked at away back be because been began best better between both but by called came
can change city come could day days did do does down each end enough even every eyes far feet few
find first five food for found four from good had hard has have hear heard help here home house how
if important in into is it its keep kind knew know land large last learn left let life light like
little live long look looked made make man many may me means more most much must my name near need
never new next night no now number of often old on once one only or other others our out over own
part parts people place play put read room said same saw say sea second see sentence set she should
show side small so some something soon sound still story such sun take tell than that the their them
then there they things think this thought three through time times to today together told too took
toward try turned two under until up us use used very want was water way we well went were what when
where which while white who whole will with without words work world would write year years young
your
"""
WORDS = tuple(_TEXT.split())
"""Frequent enough in English to be one token each, with the space before them."""
TOKENS_PER_WORD = 1.0
