"""What surrounds a plot: how stories begin, what happens on the side, and how they end."""

OPENINGS = (
    "Once upon a time there was {a_trait_hero} named {N} who lived {place}.",
    "Once there was {a_trait_hero} called {N} who lived {place}.",
    "Once upon a time, {place}, there lived {a_trait_hero} named {N}.",
    "Long ago {a_trait_hero} named {N} lived {place}.",
    "There was once {a_trait_hero} named {N}, and {his} home was {place}.",
    "{N} was {a_trait_hero} who lived {place}.",
    "A long time ago, {a_trait_hero} named {N} made a home {place}.",
)
HABITS = (
    "Every morning {N} opened the window and listened to the birds.",
    "In the evening {he} liked to watch the lights come on, one after another.",
    "{N} had few things, but {he} took good care of them.",
    "Everyone knew {N}, because {he} had a kind word for all of them.",
    "On quiet days {N} counted the clouds and gave each of them a name.",
    "{He} dreamed of seeing the place where the sky meets the sea.",
    "Most of all, {N} loved {his} old {thing}.",
    "Before bed {he} always drank a cup of warm milk.",
    "{N} could not sing well, but {he} sang every day.",
)
EPISODES = (
    (
        ("In the spring {N} planted a seed beside the door.", "One spring {N} sowed a row of beans."),
        ("{He} watered it each day and told it small stories.", "For two weeks nothing happened at all."),
        ("Then a green leaf came up, as thin as paper.", "Then one morning there was a tiny leaf."),
        ("By summer it was taller than {N}.", "By autumn there was enough for a whole pot of soup."),
    ),
    (
        ("In the summer the well ran dry.", "That summer there was no rain for many weeks."),
        ("Everyone had to carry water from the river.", "The animals came down from the hills to drink."),
        (
            "{N} carried two buckets each morning, one for the house and one for the neighbours.",
            "{N} shared what was left and did not complain.",
        ),
        (
            "When the rain came at last, all of them stood outside and laughed.",
            "Then the clouds came, and the first drops fell on the warm stones.",
        ),
    ),
    (
        ("On market day {N} went to town.", "Once a week {N} walked to the market."),
        (
            "There were apples, fish, ribbons and a man who mended clocks.",
            "It smelled of bread and oranges, and somebody played a violin.",
        ),
        ("{N} bought some cheese and a ball of string.", "{N} had three coins and spent only one."),
        ("On the way home {he} sat on a wall and watched the boats.", "It was dark when {he} came home."),
    ),
    (
        ("One winter the lake froze.", "In January the snow reached the windows."),
        ("{N} made a path to the house of an old friend.", "An old friend came to stay for a week."),
        ("They played cards and roasted chestnuts.", "They mended the nets and told old jokes."),
        ("Outside the wind howled, but inside it was warm.", "When the snow melted, they were almost sorry."),
    ),
    (
        ("One night {N} could not sleep.", "One night there was a strange sound outside."),
        ("{He} put on a coat and went out.", "{He} opened the door and listened."),
        (
            "The whole sky was full of falling stars.",
            "It was only an owl, and it looked at {him} with round eyes.",
        ),
        (
            "{N} made a wish, but {he} never told anyone what it was.",
            "{N} stood there until {his} feet were cold.",
        ),
    ),
    (
        ("Later that year a letter arrived.", "Some time later the postman brought a letter."),
        ("It came from far away and smelled of salt.", "The stamp showed a ship with three masts."),
        ("An old friend asked how {N} was.", "It said: “I think of you whenever I hear the rain.”"),
        ("{N} answered on the same day.", "{N} read it three times and put it under the pillow."),
    ),
)
ENDINGS = (
    "From that day on, {N} and {M} were the best of friends.",
    "And {N} was {feeling}, and slept well that night.",
    "And if you pass that way, you may still see {N} and {M} together.",
    "After that, {N} was never alone again.",
    "{N} went home, closed the door and was {feeling}.",
    "And they told this story for many years.",
    "That evening {N} and {M} watched the sun go down, and they were {feeling}.",
    "And so the day ended better than it had begun.",
)
MORALS = (
    "Sometimes a small light is enough.", "It is good to have a friend.", "Kindness finds its way home.",
    "Patience is also a kind of courage.", "Help often comes from where you do not expect it.", "The end.",
    "And that is all there is to tell.", "What you share becomes larger.",
)  # fmt: skip
