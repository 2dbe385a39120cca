"""Facts about animals."""

FACTS = """
## cats ; a cat, the cat, kittens ; are
Cats are small, quiet animals that have lived with people for thousands of years.
They can see well in weak light, so they like to hunt at dusk.
They sleep for more than half of the day.
Their whiskers help them to feel whether a gap is wide enough.
They purr when they are content, and sometimes when they are unwell.
They wash themselves with a rough tongue.
A cat often lands on its feet when it falls.
Young cats are called kittens.

## dogs ; a dog, the dog, puppies ; are
Dogs are friendly animals that have lived with people longer than any other animal.
Their sense of smell is many times better than ours.
They help people to herd sheep, to find the lost and to guide the blind.
They show their mood with the tail and the ears.
They need walks, company and kind rules.
There are hundreds of breeds, from tiny ones to giants.
Young dogs are called puppies.

## birds ; a bird, the birds ; are
Birds are animals with feathers, wings and a beak.
All of them lay eggs, and most of them build nests.
Their bones are light, and that helps them to fly.
Many of them travel to warm lands in autumn and return in spring.
They sing to find a mate and to guard their place.
Some birds, such as penguins and ostriches, cannot fly.
The smallest bird is a hummingbird that weighs less than a coin.

## fish ; a fish, fishes ; are
Fish are animals that live in water and breathe with gills.
Most of them are covered with scales.
They swim by moving the tail from side to side.
Some live in rivers, some live in lakes and many live in the sea.
A large group that swims together is called a school.
Salmon swim up rivers to lay their eggs where they were born.
Sharks are fish too, and their bones are made of cartilage.

## whales ; a whale, the whale ; are
Whales are the largest animals in the sea.
They are mammals, so they breathe air and feed their young with milk.
The blue whale is the largest animal that has ever lived.
Some of them sing long songs that travel far under water.
Many of them swim thousands of kilometres each year.
They rise to the surface and blow out a cloud of mist.
Some eat fish, and others filter tiny shrimps from the water.

## dolphins ; a dolphin ; are
Dolphins are clever mammals that live in the sea and in some rivers.
They find their way with clicks and listen for the echo.
They live in groups and help each other.
They like to ride the waves in front of a ship.
Each of them has its own whistle, which works like a name.
They sleep with one half of the brain at a time.

## foxes ; a fox, the fox ; are
Foxes are small wild relatives of the dog.
They have pointed ears, a narrow face and a thick tail.
The red fox lives in forests, on farms and even in cities.
They eat mice, berries, insects and almost anything else.
They hunt mostly at night and listen for the smallest sound.
The young are born in a den in spring and are called cubs.
In many old tales the fox is the clever one.

## bears ; a bear, the bear ; are
Bears are large, strong animals with thick fur.
They eat berries, fish, honey, roots and sometimes meat.
Many of them sleep in a den through the winter.
They have a very good nose.
The polar bear lives on the ice in the far north.
Cubs stay with their mother for about two years.

## horses ; a horse, the horse, ponies ; are
Horses are strong, fast animals that eat grass.
They carried people and pulled carts for thousands of years.
They can sleep while they stand.
Their ears show where they are looking and how they feel.
They live in groups called herds.
A young horse is called a foal, and it can walk soon after it is born.

## owls ; an owl, the owl ; are
Owls are birds that hunt at night.
Their large eyes see well in the dark.
They turn their heads very far, because they cannot move their eyes.
Soft feathers make their flight almost silent.
They hear a mouse under the snow.
Many people think of them as a sign of wisdom.

## bees ; a bee, honey bees, the bee ; are
Bees are flying insects that visit flowers.
They collect nectar and turn it into honey.
They carry pollen from flower to flower, and so they help fruit to grow.
Honey bees live together in a hive with one queen.
They dance to show the others where the flowers are.
A single bee makes only a small spoon of honey in its life.

## butterflies ; a butterfly ; are
Butterflies are insects with large and often colourful wings.
They begin life as an egg and then as a caterpillar.
The caterpillar rests in a case and comes out with wings.
They drink nectar through a long, thin tube.
They taste with their feet.
The monarch travels thousands of kilometres to spend the winter in a warm place.

## ants ; an ant ; are
Ants are small insects that live in large families.
Each family has at least one queen, who lays the eggs.
The workers gather food, clean the nest and care for the young.
They leave a trail of scent so that the others can follow.
They can carry things that weigh many times more than they do.
There are ants on almost every part of the land.

## spiders ; a spider ; are
Spiders are small animals with eight legs.
Many of them spin webs of fine silk to catch insects.
Their silk is very strong for its weight.
They help us, because they eat flies and mosquitoes.
Most of them cannot hurt people.
A web covered with morning dew looks like a string of pearls.

## elephants ; an elephant ; are
Elephants are the largest animals on land.
They use the trunk to breathe, to drink, to lift things and to greet each other.
They live in families that are led by an old female.
They remember places and friends for many years.
Large ears help them to stay cool.
They eat grass, leaves, bark and fruit for most of the day.

## penguins ; a penguin ; are
Penguins are birds that cannot fly but swim very well.
Most of them live in the cold south.
Their thick feathers keep out the wind and the water.
They stand close together to stay warm.
The father often keeps the egg warm on his feet.
They eat fish, squid and small shrimps.

## frogs ; a frog, toads ; are
Frogs are small animals that live near water.
They begin life as tadpoles with a tail and gills.
Later they grow legs and lungs and move onto the land.
They catch insects with a long, sticky tongue.
On warm nights they sing from ponds and ditches.
They drink through the skin.

## octopuses ; an octopus, the octopus ; are
Octopuses are soft animals of the sea with eight arms.
They have three hearts and blue blood.
They change their colour to hide among the rocks.
They are clever, and they can open jars to reach food.
When they are in danger they let out a cloud of ink.
With no bones, they can slip through very small holes.

## crabs ; a crab ; are
Crabs are animals with a hard shell and ten legs.
The front legs end in strong claws.
Many of them walk sideways.
When a crab grows, it leaves its old shell and waits for the new one to harden.
They live on beaches, among rocks and on the floor of the sea.
They eat plants, small animals and whatever the tide leaves behind.

## gulls ; seagulls, a gull, a seagull ; are
Gulls are large white and grey birds that live near the sea.
They follow fishing boats and hope for scraps.
They can drink salt water.
They drop shells onto stones to break them.
Their loud cries are heard in every harbour.
Both parents feed the chicks.

## turtles ; a turtle, sea turtles, tortoises ; are
Turtles are animals with a hard shell that protects them.
Some live on land, and others spend almost all their life in the sea.
They breathe air, even when they live in water.
Sea turtles return to the beach where they were born to lay their eggs.
Many of them live longer than people do.
They have no teeth, but their beaks are sharp.

## dinosaurs ; a dinosaur ; are
Dinosaurs were animals that lived on the Earth many millions of years ago.
Some of them were as small as hens, and others were longer than a bus.
Many ate plants, and some hunted other animals.
Most of them died out about sixty-six million years ago.
The birds of today are their relatives.
We know them from bones and footprints that turned into stone.
"""
