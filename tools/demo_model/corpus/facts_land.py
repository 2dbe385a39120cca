"""Facts about the land, the seasons and the coast."""

FACTS = """
## mountains ; a mountain, the mountains ; are
Mountains are high places where the land has been pushed up.
They grow very slowly, as large plates of rock press against each other.
The higher you climb, the colder and thinner the air becomes.
Many of them keep snow on their tops all year.
Rivers often begin there and run down to the plains.
Goats, eagles and marmots live among the rocks.
The highest one in the world is Mount Everest.
From a summit you can see far in every direction.

## a forest ; forests, the forest, the woods ; is
A forest is a large piece of land that is covered with trees.
The trees clean the air and keep the soil in its place.
Under the leaves it is cool, quiet and green.
Deer, owls, foxes and many insects live there.
Fallen leaves and branches turn slowly into new earth.
Mushrooms grow there, and their fine threads join the roots of the trees.
A walk in a forest makes most people feel calm.

## trees ; a tree, the trees ; are
Trees are tall plants with a trunk of wood.
They drink water through their roots and catch sunlight with their leaves.
Some lose their leaves in autumn, and others stay green all year.
Each year many of them add one ring to the trunk, so you can count how old they are.
They give us shade, fruit, wood and clean air.
Birds build nests in their branches.
The oldest living trees are several thousand years old.

## flowers ; a flower, the flowers ; are
Flowers are the parts of a plant that make seeds.
Their colours and their scent call bees and butterflies.
The insects carry pollen from one bloom to the next.
Some open in the morning and close at night.
Roses, tulips and daisies are grown in gardens all over the world.
People give them at weddings, on birthdays and when a friend is ill.
In spring a dry field can turn yellow and red in a single week.

## a garden ; gardens, gardening, the garden ; is
A garden is a piece of land where people grow flowers, fruit or vegetables.
It needs light, water, good earth and a little patience.
Worms make the soil loose, and bees help the fruit to grow.
Weeds grow faster than anything else, so a gardener visits every day.
Beans, lettuce and radishes are easy plants to begin with.
Many people find peace in it after a busy day.
A small garden can grow in pots on a balcony.

## the desert ; deserts, a desert ; is
The desert is a dry land where very little rain falls.
Days there can be very hot, and nights can be very cold.
The wind shapes the sand into long hills called dunes.
Camels, snakes and small foxes know how to live there.
Some plants store water in thick stems.
An oasis is a place in the desert where water comes up from the ground.
The sky above it is full of stars, because there are few lights.

## an island ; islands, the island ; is
An island is a piece of land with water on every side.
Some islands are the tops of mountains that rise from the sea floor.
Others were once joined to the land and were cut off by the water.
Plants and animals there often differ from those anywhere else.
People travel to it by boat, by plane or over a bridge.
Life on a small island follows the weather and the ferry.

## a volcano ; volcanoes ; is
A volcano is a place where melted rock comes out of the Earth.
The melted rock is called magma below the ground and lava above it.
Some volcanoes sleep for hundreds of years between eruptions.
The ash makes the soil rich, so farmers live nearby in spite of the danger.
Many islands were made by volcanoes.
Scientists listen to small earthquakes to guess when one may wake.

## a beach ; beaches, the beach, sand ; is
A beach is a strip of sand or stones at the edge of the water.
Sand is made of rock and shells that waves have ground very small.
Each tide brings new things, such as shells, driftwood and seaweed.
Gulls and small wading birds look for food there.
In summer families come to swim and to build castles of sand.
In winter it is empty, and the wind draws lines in the sand.

## a harbour ; harbours, the harbour, a port, a harbor, ports ; is
A harbour is a safe place where ships can stay.
Walls of stone keep the large waves out.
Boats are tied to the quay with thick ropes.
Early in the morning the fishing boats come home and the gulls follow them.
Cranes lift heavy boxes from the ships and set them on trains and lorries.
A small light on the wall shows the way in at night.
Harbours smell of salt, rope, tar and fish.

## a lighthouse ; lighthouses, the lighthouse ; is
A lighthouse is a tower with a strong light that helps ships find their way.
It stands on a rock, on a cape or at the mouth of a harbour.
Each one flashes in its own rhythm, so sailors know which light they see.
A large lens of glass gathers the light into a narrow beam.
In the past a keeper lived there and cared for the lamp.
Most lighthouses work by themselves today.
Many of them are painted with red and white stripes so that they can be seen by day.

## ships ; a ship, boats, a boat, sailing ; are
Ships are large vessels that carry people and goods across the water.
They float because they push aside water that weighs as much as they do.
For centuries they were moved by wind and sails.
Today most of them use large engines.
Most of the goods that the world trades travel by ship.
The front is called the bow, and the back is called the stern.
The left side is called port, and the right side is called starboard.
A captain is in charge, and the crew keep watch by day and by night.

## a bridge ; bridges, the bridge ; is
A bridge is a structure that carries a road or a path over an obstacle.
It may cross a river, a valley, a road or a railway.
The oldest bridges were fallen trees and flat stones.
An arch carries its load down into the ground on both sides.
A suspension bridge hangs from strong cables.
Good bridges bend a little in the wind, and that keeps them from breaking.

## spring ; springtime, the spring season ; is
Spring is the season between winter and summer.
The days grow longer and the air grows warm.
Buds open, birds build nests and young animals are born.
Farmers plough the fields and sow seeds.
Melting snow fills the streams.
People open their windows and begin to work in their gardens.

## summer ; the summer ; is
Summer is the warmest season of the year.
The days are long and the nights are short.
Fruit ripens, and the fields turn gold.
Children have holidays, and families travel to the sea or to the mountains.
Afternoons can be hot, and storms may come in the evening.
It is a good time to swim, to read in the shade and to eat ice cream.

## autumn ; fall, the autumn ; is
Autumn is the season between summer and winter.
The leaves turn yellow, red and brown, and then they fall.
Apples, pumpkins and grapes are ready to be picked.
Many birds fly south to warmer lands.
Mornings are cool, and mist lies over the fields.
Squirrels hide nuts for the cold months.

## winter ; the winter ; is
Winter is the coldest season of the year.
The days are short and the nights are long.
Many trees are bare, and some animals sleep until spring.
In some places snow covers the ground for months.
People wear warm coats and drink hot soup.
The cold air is often very clear, so the stars look bright.
After the middle of winter, each day is a little longer.

## the seasons ; seasons, the four seasons ; are
The seasons are the four parts of the year: spring, summer, autumn and winter.
They change because the Earth is tilted as it travels around the sun.
When the north leans toward the sun, it is summer there and winter in the south.
Near the equator the days stay almost the same length all year.
Plants and animals follow the seasons more closely than any clock.
Each of them has its own work, its own food and its own feasts.

## a farm ; farms, farming, farmers ; is
A farm is a place where people grow food and keep animals.
Wheat, maize and potatoes grow in its fields.
Cows give milk, hens lay eggs and sheep give wool.
The work begins early, because animals wake with the sun.
A farmer watches the sky and hopes for rain at the right time.
Good soil is the greatest treasure of a farm.

## a city ; cities, the city, towns ; is
A city is a large place where many people live close together.
It has streets, shops, schools, parks and markets.
Buses and trains carry people to work in the morning and home at night.
Many cities began beside a river or a harbour.
At night the windows shine like a second sky.
A good city has trees, quiet corners and places to sit.
"""
