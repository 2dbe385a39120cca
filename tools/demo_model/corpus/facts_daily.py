"""Facts about food, work, travel and the arts."""

FACTS = """
## bread ; the bread, a loaf of bread, baking bread ; is
Bread is a food that is made from flour, water and often yeast.
The yeast makes small bubbles of gas, and they lift the dough.
The dough is mixed, kneaded, left to rise and then baked.
A hot oven gives it a brown and crisp crust.
People have baked it for thousands of years.
It tastes best on the day when it is made.
The smell of fresh bread can fill a whole street.

## tea ; a cup of tea ; is
Tea is a drink that is made from the leaves of a shrub.
Green tea and black tea come from the same plant.
The leaves rest in hot water for a few minutes.
Some people add milk, lemon or honey.
It has been grown in China for a very long time.
A cup of tea is a good reason to sit down for a while.

## coffee ; a cup of coffee ; is
Coffee is a dark drink that is made from roasted beans.
The beans are the seeds of a red fruit.
They grow in warm hills near the equator.
The beans are roasted, ground and mixed with hot water.
It wakes people up because it contains caffeine.
Some drink it black, and others add milk and sugar.

## soup ; a soup, making soup ; is
Soup is a warm dish that is cooked in water or broth.
Almost any vegetable can go into it.
It begins with an onion, a little oil and some time.
It feeds many people from a single pot.
A slow fire makes it taste better.
On a cold evening a bowl of soup warms the hands as well.

## cheese ; a cheese ; is
Cheese is a food that is made from milk.
The milk is thickened, and the water is pressed out.
Some cheese is soft and fresh, and some is hard and years old.
The holes in some cheeses are made by bubbles of gas.
Salt keeps it and gives it taste.
It goes well with bread, fruit and a walk.

## apples ; an apple, fruit, fruits ; are
Apples are round fruits that grow on trees.
They may be red, green or yellow.
The trees bloom in spring, and the fruit is ripe in autumn.
A cool cellar keeps them for months.
People bake them in pies and press them for juice.
There are thousands of kinds, and each has its own taste.

## chocolate ; a bar of chocolate ; is
Chocolate is a sweet food that is made from cocoa beans.
The beans grow in pods on trees in warm countries.
They are dried, roasted and ground.
Dark chocolate has more cocoa, and milk chocolate has more milk and sugar.
It melts at the warmth of the hand.
Long ago people drank it with spices.

## cooking ; how to cook, a kitchen ; is
Cooking is the art of turning plain food into a good meal.
Heat makes food soft, safe and full of taste.
Salt, fat, acid and time do most of the work.
It helps to read the whole recipe before you begin.
A sharp knife is safer than a dull one.
Sharing a meal is one of the oldest ways to make friends.

## music ; songs, a song ; is
Music is sound that people arrange in time.
It is built from rhythm, melody and harmony.
It can make us dance, rest, laugh or cry.
Some of it is written down, and some is passed on by ear.
Every country has its own songs and instruments.
Playing together teaches people to listen.
A tune from long ago can bring back a whole summer.

## a piano ; the piano, pianos ; is
A piano is a large instrument with black and white keys.
Each key moves a small hammer that strikes a string.
Most pianos have eighty-eight keys.
It can whisper and it can thunder.
A tuner visits from time to time to set the strings right.
Many people begin with one hand and a simple tune.

## a violin ; the violin, violins ; is
A violin is a small instrument with four strings.
The player draws a bow across the strings.
The body is made of thin wood, and it makes the sound loud and warm.
It has no marks for the notes, so the fingers must learn the way.
It sings alone or in an orchestra.
It takes patience, and the first weeks sound like a door.

## painting ; paintings, art ; is
Painting is the art of putting colour on a surface.
The oldest paintings are on the walls of caves.
Red, yellow and blue can be mixed into many other colours.
Some painters show what they see, and others show what they feel.
Light is the hardest thing to paint.
You do not need to be an expert to enjoy it.

## books ; a book, reading, the book ; are
Books are pages of words and pictures that are held together by a cover.
They carry stories and knowledge from one person to another.
For a long time they were copied by hand.
The printing press made them cheap and common.
A good book lets you visit places where you have never been.
Libraries lend them to everyone.
Reading a little each day soon adds up to a lot.

## a library ; libraries, the library ; is
A library is a place that keeps books and lends them to people.
It is quiet, and everyone may come in.
The books stand in order, so that each of them can be found.
A librarian helps you to find the right one.
Many libraries also offer music, films and computers.
Some of them are older than the cities around them.

## a clock ; clocks, time, watches ; is
A clock is a machine that shows the time.
The first ones used the sun, water or sand.
Later ones used a pendulum that swings at a steady pace.
Today many use a small crystal that shakes many thousands of times a second.
A day has twenty-four hours, and an hour has sixty minutes.
Good clocks allowed sailors to know where they were on the sea.

## trains ; a train, the train, railways ; are
Trains are rows of wagons that run on rails.
The first ones were pulled by steam engines.
Today most of them run on electric power or diesel.
Steel wheels roll easily, so a train needs little energy for its weight.
They carry people to work and goods across whole countries.
The fastest ones travel at more than three hundred kilometres an hour.
A window seat on a train is a fine place to think.

## bicycles ; a bicycle, bikes, a bike, cycling ; are
Bicycles are light vehicles with two wheels and pedals.
The rider turns the pedals, and a chain turns the back wheel.
Gears make it easier to climb a hill.
They make no smoke and very little noise.
Once you learn to ride one, you do not forget.
It is wise to wear a helmet and to carry a lamp at night.

## aeroplanes ; airplanes, planes, an airplane, flying ; are
Aeroplanes are machines that fly with wings and engines.
The shape and the angle of the wing push the air down, and that lifts the plane up.
The first powered flight was in 1903 and lasted only a few seconds.
Today a plane can cross an ocean in a few hours.
High above the ground the air is thin and very cold.
Pilots plan each flight and watch the weather.

## maps ; a map, the map ; are
Maps are drawings that show where things are.
Most of them have north at the top.
A scale tells you how far apart two places really are.
Blue usually means water, and green often means forest.
Old maps had pictures of sea monsters in the empty parts.
A good map makes a strange city feel friendly.

## friendship ; friends, a friend, good friends ; is
Friendship is the bond between people who like and trust each other.
Good friends listen, tell the truth and laugh at the same things.
It grows slowly, like a tree.
A friend can be near or far away.
Small acts of kindness keep it alive.
When friends argue, a simple apology often helps.

## kindness ; being kind ; is
Kindness is the habit of helping others without asking for anything.
It may be a smile, an open door or a warm meal.
It costs little and is remembered for a long time.
It often spreads from one person to the next.
Being kind to yourself is part of it too.
Anyone can practise it, on any day.

## sleep ; sleeping, good sleep ; is
Sleep is the rest that the body and the mind need every night.
Most adults need seven to nine hours of it.
While we sleep, the body repairs itself and the mind sorts the day.
Dreams come most often near the morning.
A dark, cool and quiet room helps.
It is good to go to bed at the same time each night.

## a school ; schools, school, teachers ; is
A school is a place where people learn together.
Children learn to read, to write and to count.
A good teacher asks questions as often as she gives answers.
Mistakes are a normal part of learning.
Friends made at school can last for a whole life.
Some schools are large, and some have a single room.

## mathematics ; maths, math, numbers ; is
Mathematics is the study of numbers, shapes and patterns.
It begins with counting and measuring.
Zero was a great idea, and it took people a long time to find it.
A prime number can be divided only by one and by itself.
The same rules hold everywhere and at all times.
We use it to build bridges, to plan journeys and to share a cake.

## football ; soccer, a football match ; is
Football is a game in which two teams try to put a ball into a goal.
Each team has eleven players.
Only the keeper may use the hands, and only near the goal.
A match has two halves of forty-five minutes.
It is played in almost every country.
All you need is a ball and a bit of space.

## chess ; a game of chess ; is
Chess is a board game for two players.
Each player has sixteen pieces on a board of sixty-four squares.
The aim is to trap the king of the other player.
The queen is the strongest piece, and the knight moves in the shape of an L.
It rewards patience and planning.
A game may last five minutes or five hours.
"""
