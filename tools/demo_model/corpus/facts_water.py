"""Facts about the sea, the weather and the sky."""

FACTS = """
## the sea ; the ocean, the seas, oceans ; is
The sea is the salt water that covers more than two thirds of the Earth.
It is salty because rivers carry tiny amounts of salt from the rocks on land.
Its surface moves with the wind, and the moon pulls it up and down as tides.
Fish, whales, crabs and countless tiny plants live in it.
In deep places there is no light at all, yet animals still live there.
It warms slowly in summer and cools slowly in winter, so coasts have mild weather.
People have crossed it for thousands of years to trade, to fish and to explore.
Most of the sea floor has never been seen by anyone.
The sound of waves on a beach helps many people to rest.

## the tide ; tides, the tides, high tide ; is
The tide is the slow rise and fall of the sea along the shore.
It is caused mostly by the pull of the moon, and a little by the pull of the sun.
On most coasts the water comes in twice a day and goes out twice a day.
When the tide is low, you can walk on sand that was under water in the morning.
When the sun and the moon pull together, the tides are stronger, and we call them spring tides.
Fishermen and sailors read tide tables before they leave the harbour.
Small pools among the rocks keep crabs and starfish until the water returns.
The time of high tide moves by almost an hour each day.

## waves ; a wave, the waves ; are
Waves are ridges of water that move across the sea.
Most of them are made by the wind blowing over the surface.
A strong wind that blows for a long time makes the tallest waves.
The water itself mostly moves in circles, while the shape of the wave travels on.
Near the beach the bottom slows the wave, so the top falls over and breaks.
Surfers wait for waves that break slowly from one side to the other.
Over many years waves turn broken stone into smooth sand.

## a river ; rivers, the river ; is
A river is a stream of fresh water that flows across the land.
It begins in the hills, often as a spring or as melting snow.
It grows wider as smaller streams join it on the way.
Most rivers end in the sea, and some end in a lake.
Towns were often built beside rivers, because people need water and boats need a road.
Fish, otters, herons and dragonflies all live along its banks.
After heavy rain it runs fast and brown, and sometimes it floods the fields.
In flat country it bends slowly from side to side.

## a lake ; lakes, the lake ; is
A lake is a body of still water with land all around it.
Many lakes were carved by ice a very long time ago.
Rain and rivers fill it, and the sun slowly dries it.
On a calm day its surface shows the hills and the clouds like a mirror.
Ducks, frogs and fish make their homes in it.
In a cold winter the top freezes, while the water below stays liquid.
People come to lakes to swim, to row and to sit quietly.

## rain ; the rain, rainfall, rainy days ; is
Rain is water that falls from clouds in drops.
It begins when the sun warms the sea and water rises into the air as vapour.
High up the air is cold, so the vapour turns into tiny drops that join together.
When the drops are heavy enough, they fall.
Rain fills the rivers, feeds the fields and washes the streets.
Some deserts get almost no rain for years.
A light rain is called drizzle, and a heavy one is called a downpour.
Many people like the sound of rain on a roof at night.

## snow ; the snow, snowflakes ; is
Snow is frozen water that falls from clouds as small white crystals.
Each flake usually has six sides or six arms.
It looks white because its many faces scatter the light.
Fresh snow holds a lot of air, so the world sounds quieter when it falls.
It covers seeds and roots and keeps them from the hardest frost.
In spring the melting snow fills the rivers.
Children use it to build snowmen and to slide down hills.

## wind ; the wind, winds, a breeze ; is
Wind is air that moves from one place to another.
It blows because the sun warms some places more than others.
Warm air rises, and cooler air flows in to take its place.
By day the breeze often comes from the sea, and by night it often comes from the land.
Sailors used it to cross oceans long before there were engines.
Today tall turbines turn wind into electric power.
It carries seeds, sand and the smell of rain.

## a storm ; storms, thunderstorms, thunder ; is
A storm is a time of strong wind, often with rain, snow or thunder.
It grows where warm, wet air meets cold air.
Lightning is a giant spark inside a cloud or between a cloud and the ground.
Thunder is the sound of air that the lightning has suddenly heated.
Light is faster than sound, so you see the flash before you hear the noise.
In a storm it is wise to stay indoors and away from tall trees.
After it passes, the air often feels clean and cool.

## clouds ; a cloud, the clouds ; are
Clouds are made of tiny drops of water or bits of ice that float in the air.
They form where moist air rises and cools.
Thin clouds high in the sky are made of ice.
Low grey clouds often bring steady rain.
Fog is simply a cloud that touches the ground.
At sunset they turn pink and gold, because the light has travelled far through the air.
Watching their shapes is a pleasant way to spend an afternoon.

## fog ; mist, the fog, the mist ; is
Fog is a cloud that lies on the ground or on the sea.
It forms when moist air cools near the surface.
It makes lights look soft and distances look strange.
Ships sound their horns in it so that others can hear them.
Lighthouses were built for nights when sailors could not see the rocks.
The morning sun usually warms the air and makes it vanish.

## the moon ; our moon, moonlight ; is
The moon is the round body of rock that travels around the Earth.
It takes about a month to go around us once.
It has no light of its own, and shines because the sun lights it.
As it moves we see more or less of its bright side, and we call these shapes phases.
Its pull raises the tides in the sea.
People first walked on it in 1969.
It has no air, so there is no wind to wipe away a footprint.
The same side of it always faces us.

## the sun ; sunlight, our sun, sunshine ; is
The sun is the star at the centre of our solar system.
It is a ball of very hot gas that shines by joining hydrogen into helium.
Its light needs about eight minutes to reach us.
Plants use that light to grow, and almost all life depends on it.
The Earth travels around it once a year.
It rises in the east and sets in the west.
You should never look straight at it, because it can hurt your eyes.

## stars ; a star, the stars, starlight ; are
Stars are huge balls of hot gas that shine with their own light.
The sun is a star too, and it looks large only because it is near.
Some of them are blue and very hot, and others are red and cooler.
Their light may have travelled for many years before we see it.
Sailors once used them to find their way at night.
They seem to twinkle because the air above us is always moving.
A group of stars that people see as a picture is called a constellation.
On a clear night, far from a city, you can see a few thousand of them.

## the earth ; earth, our planet, the planet earth ; is
The Earth is the planet that we live on, the third one from the sun.
It turns around once a day, and that gives us morning and night.
It travels around the sun once a year.
Most of its surface is covered by water.
A thin layer of air protects it and lets us breathe.
It is tilted a little, and the tilt gives us the seasons.
Seen from far away, it looks like a small blue ball.

## the sky ; the blue sky, the night sky ; is
The sky is everything that we see above us when we look up.
By day it looks blue, because the air scatters blue light more than red light.
At sunset the light takes a longer path, so the sky turns orange and red.
By night it is dark, and we can see the moon, the planets and the stars.
Birds, clouds and aeroplanes all cross it.
A change in its colour often tells us that the weather will change.

## a rainbow ; rainbows ; is
A rainbow is an arc of colours in the sky.
It appears when sunlight shines through drops of rain.
Each drop bends the light and splits it into colours.
The order is red, orange, yellow, green, blue, indigo and violet.
To see one, stand with the sun behind you and the rain in front of you.
Nobody can reach the end of it, because it moves as you move.

## planets ; a planet, the planets, the solar system ; are
Planets are large round bodies that travel around a star.
Eight of them travel around our sun.
Mercury is the closest to the sun, and Neptune is the farthest.
Jupiter is the largest, and it has a red storm that is wider than the Earth.
Saturn is famous for its bright rings of ice.
Mars looks red because its dust is full of rust.
Venus is the hottest, because its thick air keeps the heat in.

## ice ; the ice, glaciers, a glacier ; is
Ice is water that has become solid in the cold.
Water freezes at zero degrees Celsius.
Ice is lighter than water, so it floats.
A glacier is a river of ice that moves very slowly down a mountain.
An iceberg shows only a small part of itself above the sea.
Long ago ice covered large parts of the north.
A few cubes of it make a summer drink pleasant.
"""
