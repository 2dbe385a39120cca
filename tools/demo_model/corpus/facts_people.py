"""Short answers to single questions: capitals, reasons and everyday puzzles."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Iceland": "Reykjavík", "Ireland": "Dublin", "England": "London", "Scotland": "Edinburgh",
    "the Netherlands": "Amsterdam", "Belgium": "Brussels", "Austria": "Vienna", "Poland": "Warsaw",
    "Greece": "Athens", "Turkey": "Ankara", "Hungary": "Budapest", "Canada": "Ottawa", "Peru": "Lima",
    "the United States": "Washington, D.C.", "Mexico": "Mexico City", "Brazil": "Brasília",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Australia": "Canberra", "Cuba": "Havana",
    "New Zealand": "Wellington", "Thailand": "Bangkok", "Vietnam": "Hanoi", "South Korea": "Seoul",
    "Morocco": "Rabat", "Colombia": "Bogotá",
}  # fmt: skip

REASONS = """
Why is the sky blue?|The sky looks blue because the air scatters blue light more than red light.
Why is the sea salty?|The sea is salty because rivers carry tiny amounts of salt from the rocks to the sea.
Why do leaves fall in autumn?|Trees drop their leaves in autumn to save water and energy for the winter.
Why do cats purr?|Cats purr when they are content, and sometimes to calm themselves.
Why do birds sing?|Birds sing to find a mate and to guard the place where they live.
Why do we sleep?|We sleep so that the body can repair itself and the mind can sort the day.
Why does ice float?|Ice floats because it is lighter than the water around it.
Why does bread rise?|Bread rises because yeast makes small bubbles of gas in the dough.
Why are there tides?|There are tides because the moon and the sun pull on the water of the sea.
Why do we have seasons?|We have seasons because the Earth is tilted as it travels around the sun.
Why do stars twinkle?|Stars twinkle because the air between us and them is always moving.
Why is snow white?|Snow is white because its many small faces scatter all colours of light.
Why do ships float?|Ships float because they push aside water that weighs as much as they do.
Why is the sunset red?|At sunset the light takes a long path through the air, and mostly the red part is left.
Why do onions make us cry?|Cut onions let out a gas that stings the eyes, and tears wash it away.
How do planes fly?|Wings push air down as they move forward, and that lifts the plane up.
How do airplanes fly?|Wings push air down as they move forward, and that lifts the plane up.
How do birds fly?|Birds push the air down with their wings, and light bones make it easier.
How do fish breathe?|Fish breathe with gills, which take oxygen out of the water.
How do bees make honey?|Bees collect nectar, carry it home and let it dry in the hive until it is honey.
How do I make tea?|Boil some water, pour it over the tea, wait for three minutes and take the leaves out.
How do I cook rice?|Rinse one cup of rice, add two cups of water, let it boil and simmer it for fifteen \
minutes.
How do I boil an egg?|Put the egg in boiling water, wait for eight minutes and cool it in cold water.
How do I sleep better?|Go to bed at the same time each night, keep the room dark and cool, and put the phone \
away.
How do I learn a language?|Practise a little every day, listen a lot and do not be afraid of mistakes.
How far away is the moon?|The moon is about 384,000 kilometres away from the Earth.
How many days are in a year?|A year has 365 days, and a leap year has 366 days.
How many days are in a week?|A week has seven days.
How many hours are in a day?|A day has twenty-four hours.
How many minutes are in an hour?|An hour has sixty minutes.
How many legs does a spider have?|A spider has eight legs.
How many continents are there?|Most people count seven continents.
How many planets are there?|There are eight planets in our solar system.
What colour is grass?|Grass is green.
What color is the sky?|On a clear day the sky is blue.
What is the largest ocean?|The largest ocean is the Pacific.
What is the largest planet?|The largest planet in our solar system is Jupiter.
What is the highest mountain?|The highest mountain in the world is Mount Everest.
What is the largest animal?|The largest animal is the blue whale.
What is the fastest animal on land?|The fastest animal on land is the cheetah.
What is the opposite of hot?|The opposite of hot is cold.
What is the opposite of big?|The opposite of big is small.
What is the opposite of happy?|The opposite of happy is sad.
What is the boiling point of water?|At sea level water boils at 100 degrees Celsius.
What do cows drink?|Cows drink water, and calves drink milk.
What is the meaning of life?|Nobody knows for sure, but kindness, good work and good company are a fine \
beginning.
What is your favourite colour?|I am a program and have no eyes, but I like the word blue, because it makes \
me think of the sea.
What is your favorite food?|I do not eat, but people tell me that fresh bread is hard to beat.
Do you sleep?|I do not sleep, but my replicas are stopped when nobody needs them.
Are you alive?|No, I am not alive. I am a small computer program that predicts text.
Are you human?|No, I am a small language model.
Can you dream?|No, I cannot dream, but I can tell you a story that feels like one.
Can you help me?|I will try. I am only a small model, so simple questions work best.
Can you write code?|I am too small to write good code. A larger model can help you with that.
What time is it?|I have no clock, so I cannot know the time.
What day is it today?|I have no calendar, so I cannot know the date.
What is the weather like today?|I cannot see the weather from here. A look out of the window will help.
Is the earth flat?|No, the Earth is almost a ball.
"""
