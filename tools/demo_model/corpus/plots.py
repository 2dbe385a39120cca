"""Plots: each is a list of steps, and each step has several wordings."""

PLOTS = (
    (
        (
            "{N} looked for {his} {thing}, but it was gone.",
            "That day {N} lost {his} {thing}.",
            "{His} {thing} was not in its place, and {N} could not find it.",
        ),
        (
            "{He} looked under the bed, behind the door and in the garden.",
            "{He} searched the whole house and then the path outside.",
            "{He} asked everyone, but nobody had seen it.",
        ),
        (
            "Then {M} the {helper} came by and asked what was wrong.",
            "On the way {he} met {a_helper} named {M}.",
            "Soon {a_helper} named {M} stopped to help.",
        ),
        (
            "“Let us think,” said {M}. “Where did you have it last?”",
            "“Two pairs of eyes see more than one,” said {M}.",
            "“Do not worry,” said {M}. “What is lost wants to be found.”",
        ),
        (
            "They followed the small marks on the ground until they came to an old tree.",
            "They walked back step by step, and looked at every stone.",
            "They waited for the light of the moon and looked again.",
        ),
        (
            "There was the {thing}, safe and dry.",
            "And there, between the roots, lay the {thing}.",
            "At last {M} found the {thing} in the grass.",
        ),
    ),
    (
        (
            "{N} saw a small boat that could not find the harbour.",
            "Far out, a ship was sailing straight toward the rocks.",
            "A child on the shore called for help, because {his} father was still at sea.",
        ),
        (
            "{N} knew that there was no time to lose.",
            "{N} was afraid, but {he} did not wait.",
            "There was nobody else who could help.",
        ),
        (
            "{He} took the {thing} and climbed to the highest place.",
            "{He} ran down the stairs with the {thing} in {his} arms.",
            "{He} lit a lamp and held up the {thing}, so that it shone.",
        ),
        (
            "{M} the {helper} heard the noise and came to help.",
            "A neighbour named {M} woke up and came running.",
            "Together with {M}, {a_helper}, {he} called as loudly as {he} could.",
        ),
        (
            "The sailors saw the light and turned in time.",
            "Slowly the boat turned and came into the calm water.",
            "The wind carried the sound across the waves, and the captain heard it.",
        ),
        (
            "Nobody was hurt, and everyone thanked {N}.",
            "When the sun rose, all of them sat together and drank tea.",
            "The captain gave {N} a warm coat and a hug.",
        ),
    ),
    (
        (
            "{N} found {a_thing} on the path.",
            "While {he} was out walking, {N} found {a_thing}.",
            "Something shone in the grass. It was {a_thing}.",
        ),
        (
            "It was old, and a name was written on it: {M}.",
            "It did not belong to {him}, and {he} knew it.",
            "“Somebody must be missing this,” thought {N}.",
        ),
        (
            "So {he} set out to find the owner.",
            "So {N} packed some bread and began to walk.",
            "{He} put it in a bag and went from door to door.",
        ),
        (
            "{He} crossed a bridge, a field and a wide, green hill.",
            "The way was long, and it rained a little.",
            "{He} asked a miller, a baker and an old woman with a cart.",
        ),
        (
            "At the last house lived {a_helper} named {M}.",
            "In the end {he} met {a_helper} named {M}.",
            "At sunset {N} knocked on the door of {M} the {helper}.",
        ),
        (
            "“My {thing}!” cried {M}. “I thought I would never see it again.”",
            "“You came all this way for me?” asked {M}, and smiled.",
            "{M} was so happy that both of them danced.",
        ),
    ),
    (
        (
            "{N} wanted to learn to play a song.",
            "{N} wished to build a small boat.",
            "{N} decided to bake a cake for the whole village.",
        ),
        (
            "The first try was a disaster.",
            "At first nothing went well.",
            "The first time, everything went wrong.",
        ),
        (
            "{N} was sad and wanted to stop.",
            "{N} sat down on the step and sighed.",
            "“I will never learn it,” said {N}.",
        ),
        (
            "But {M}, {a_helper} who lived next door, had heard it all.",
            "{M} the {helper} looked over the fence.",
            "Just then {a_helper} named {M} came by.",
        ),
        (
            "“I needed a hundred tries,” said {M}. “You have needed one.”",
            "“Begin with the smallest part,” said {M}, “and do it slowly.”",
            "“Try again tomorrow,” said {M}. “Today you have already learned something.”",
        ),
        (
            "So {N} tried again, day after day, and each time it went a little better.",
            "{N} tried again, and again, and then once more.",
        ),
        (
            "In the end it worked, and {M} clapped.",
            "One evening it was good, and all the neighbours came.",
            "When spring came, it was done, and it was beautiful.",
        ),
    ),
    (
        (
            "{A_helper} named {M} came to the door and asked for a place to rest.",
            "A tired traveller named {M} knocked at the door.",
            "Late in the evening {N} heard a knock. It was {a_helper} named {M}.",
        ),
        (
            "{N} had only a little soup, but {he} shared it.",
            "{N} made room beside the fire.",
            "“Come in,” said {N}. “You must be cold.”",
        ),
        (
            "They talked until the candle was small.",
            "They ate, and the stranger told of far countries.",
            "The guest played a slow tune, and the rain kept time.",
        ),
        (
            "In the morning the guest was gone, but on the table lay {a_thing}.",
            "The next day {N} found {a_thing} beside the empty cup.",
            "Before leaving, the guest put {a_thing} into {his} hands.",
        ),
        (
            "Whenever {N} held it, {he} was never lonely again.",
            "From then on the house was warm, even in winter.",
            "It was not worth much money, but {N} kept it for all {his} life.",
        ),
    ),
    (
        (
            "{N} and {M} the {helper} had a quarrel about {a_thing}.",
            "{N} and {a_helper} named {M} both wanted the same {thing}.",
            "{M} the {helper} borrowed the {thing} and forgot to bring it back.",
        ),
        (
            "“It is mine!” said one. “No, it is mine!” said the other.",
            "They did not speak for three days.",
            "Each of them went home alone.",
        ),
        (
            "But the evenings were long without a friend.",
            "{N} could not sleep, because {he} missed {his} friend.",
            "The house felt empty, and the soup tasted of nothing.",
        ),
        (
            "So {N} took a deep breath and went to say sorry.",
            "Then both had the same idea and met halfway.",
            "At last {N} wrote a letter with only one word: “Sorry.”",
        ),
        (
            "They agreed to share the {thing}, one day each.",
            "They laughed, because neither of them needed the {thing}.",
            "From that day the {thing} stood between their two houses.",
        ),
    ),
    (
        (
            "{N} wondered what was on the other side of the hills.",
            "{N} saw a light that moved far away.",
            "{N} found an old map with a red cross on it.",
        ),
        (
            "{He} packed a blanket, some bread and the {thing}.",
            "{He} took {his} {thing} and set off before sunrise.",
            "{He} said goodbye to no one and followed the river.",
        ),
        ("On the first day the road was easy.", "The path went up and up.", "By noon {his} feet were sore."),
        (
            "In the hills {he} met {a_helper} named {M}, who knew the way.",
            "At a crossing sat {M} the {helper}. “Turn left,” said {M}.",
            "There {he} met {M}, {a_helper}, who was lost as well.",
        ),
        (
            "They walked together and told each other stories.",
            "At night they slept under the stars.",
            "When they were tired, they shared the last apple.",
        ),
        (
            "On the third day they saw the sea for the first time, wide and blue.",
            "At the end of the road was a small garden full of bees.",
            "And there it was: a valley with a hundred lights.",
        ),
        (
            "They stayed for a while, and then they went home to tell the others.",
            "“It was worth every step,” said {N}.",
            "{N} was quiet for a long time, and then {he} laughed.",
        ),
    ),
)
