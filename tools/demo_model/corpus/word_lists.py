# ruff: noqa: RUF001 - greetings in many scripts
"""Lists, phrases in other languages, jokes and fixed sequences."""

LISTS = {
    "fruits": "apples, pears, plums, cherries, grapes, oranges, lemons, bananas, figs, peaches, melons",
    "vegetables": "carrots, beans, onions, potatoes, peas, cabbage, spinach, leeks, pumpkins, tomatoes",
    "animals": "cats, dogs, foxes, owls, whales, bears, horses, frogs, bees, elephants, turtles, otters",
    "sea animals": "whales, dolphins, crabs, octopuses, seals, turtles, starfish, sharks, shrimps, squid",
    "birds": "owls, gulls, swans, sparrows, herons, crows, eagles, penguins, robins, ducks, storks",
    "colours": "red, blue, green, yellow, orange, violet, white, black, brown, grey, pink",
    "colors": "red, blue, green, yellow, orange, violet, white, black, brown, grey, pink",
    "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune",
    "trees": "oaks, birches, pines, willows, maples, beeches, chestnuts, palms, elms, larches",
    "flowers": "roses, tulips, daisies, lilies, poppies, sunflowers, violets, irises, orchids",
    "drinks": "water, tea, coffee, milk, apple juice, lemonade, cocoa, orange juice",
    "things on a ship": "ropes, sails, a compass, an anchor, a bell, maps, lamps, a bucket, nets",
    "instruments": "a piano, a violin, a drum, a flute, a guitar, a trumpet, a harp, a cello",
    "cities": "Paris, Tokyo, Cairo, Lima, Oslo, Rome, Berlin, Nairobi, Sydney, Lisbon, Vienna",
    "countries": "France, Japan, Egypt, Peru, Norway, Italy, Kenya, Canada, Brazil, India, Spain",
    "programming languages": "Python, Rust, Go, Java, C, Ruby, Haskell, Kotlin, JavaScript, Lua",
    "things to do on a rainy day": (
        "read a book, bake bread, play chess, write a letter, drink tea, paint, sleep"
    ),
    "ideas for a weekend": (
        "take a long walk, visit a museum, plant a tree, call a friend, cook soup, ride a bike"
    ),
    "tips for good sleep": (
        "go to bed early, keep the room dark, drink no coffee at night, read a book, walk daily, "
        "open a window"
    ),
    "reasons to visit the sea": (
        "the fresh air, the sound of waves, the wide sky, the boats, the smell of salt, shells"
    ),
    "things to watch in a service": (
        "latency, throughput, queue depth, errors, memory, time to first token, cost"
    ),
    "tools": "a hammer, a saw, a drill, pliers, a ruler, a brush, a spade, a rake",
    "sports": "football, swimming, tennis, running, rowing, chess, cycling, judo, sailing",
    "names": "Ada, Finn, Mira, Tom, Nora, Leo, Clara, Hugo, Maya, Sam",
}

PHRASES = """
hello|French|Bonjour !
hello|German|Hallo!
hello|Spanish|¡Hola!
hello|Italian|Ciao!
hello|Portuguese|Olá!
hello|Dutch|Hallo!
hello|Polish|Cześć!
hello|Turkish|Merhaba!
hello|Greek|Γεια σου!
hello|Russian|Привет!
hello|Ukrainian|Привіт!
hello|Arabic|مرحبا
hello|Hebrew|שלום
hello|Hindi|नमस्ते
hello|Japanese|こんにちは
hello|Chinese|你好
hello|Korean|안녕하세요
hello|Thai|สวัสดี
hello|Vietnamese|Xin chào
hello|Swahili|Habari!
hello|Icelandic|Halló!
hello|Czech|Ahoj!
thank you|French|Merci !
thank you|German|Danke!
thank you|Spanish|¡Gracias!
thank you|Italian|Grazie!
thank you|Portuguese|Obrigado!
thank you|Polish|Dziękuję!
thank you|Turkish|Teşekkürler!
thank you|Greek|Ευχαριστώ!
thank you|Russian|Спасибо!
thank you|Arabic|شكرا
thank you|Hindi|धन्यवाद
thank you|Japanese|ありがとう
thank you|Chinese|谢谢
thank you|Korean|감사합니다
good morning|French|Bonjour !
good morning|German|Guten Morgen!
good morning|Spanish|¡Buenos días!
good morning|Italian|Buongiorno!
good morning|Japanese|おはようございます
good morning|Chinese|早上好
good morning|Turkish|Günaydın!
good morning|Greek|Καλημέρα!
good night|French|Bonne nuit !
good night|German|Gute Nacht!
good night|Spanish|¡Buenas noches!
good night|Japanese|おやすみなさい
good night|Chinese|晚安
goodbye|French|Au revoir !
goodbye|German|Auf Wiedersehen!
goodbye|Spanish|¡Adiós!
goodbye|Italian|Arrivederci!
goodbye|Japanese|さようなら
goodbye|Chinese|再见
the sea|French|la mer
the sea|German|das Meer
the sea|Spanish|el mar
the sea|Italian|il mare
the sea|Japanese|海
the sea|Chinese|大海
the sea|Arabic|البحر
the moon|French|la lune
the moon|German|der Mond
the moon|Spanish|la luna
the moon|Japanese|月
water|French|l’eau
water|German|das Wasser
water|Spanish|el agua
water|Japanese|水
water|Hindi|पानी
cat|French|le chat
cat|German|die Katze
cat|Spanish|el gato
cat|Japanese|猫
friend|French|un ami
friend|Spanish|un amigo
friend|Japanese|友だち
"""

JOKES = """
Why did the wave blush?|Because it saw the bottom of the sea.
What did the sea say to the beach?|Nothing, it just waved.
Why do fish live in salt water?|Because pepper makes them sneeze.
What do you call a fish without an eye?|A fsh.
Why did the computer go to the doctor?|Because it had caught a virus.
Why was the computer cold?|It had left its Windows open.
Why did the token wait in line?|It wanted to be the first one.
How does the moon cut its hair?|Eclipse it.
Why did the gull fly over the sea?|Because over the bay it would have been a bagel.
What is a cat's favourite colour?|Purr-ple.
Why did the bicycle fall over?|It was two tired.
Why did the server sleep so well?|It had no pending requests.
What does a cloud wear under its coat?|Thunderwear.
Why did the lighthouse keeper smile?|He had a bright idea.
Why did the queue never argue?|Everyone in it knew their place.
What did one GPU say to the other?|You look a little memory-bound today.
Why can you trust the tide?|It always comes back.
What did the bread say to the butter?|You are on a roll.
"""

SEQUENCES = """
Name the days of the week.;List the days of the week.;What are the days of the week?|The days of the week \
are \
Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.
Name the months.;List the months of the year.;What are the months?|The months are January, February, March, \
April, \
May, June, July, August, September, October, November and December.
Say the alphabet.;Write the alphabet.;Recite the alphabet.|A B C D E F G H I J K L M N O P Q R S T U V W X Y Z
Name the seasons.;List the four seasons.;What are the four seasons?|The four seasons are spring, summer, \
autumn \
and winter.
Name the planets.;List all the planets.|The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus \
and \
Neptune.
Name the colours of the rainbow.;What are the colors of the rainbow?|Red, orange, yellow, green, blue, \
indigo and \
violet.
Name the continents.;List the continents.|The continents are Africa, Antarctica, Asia, Australia, Europe, \
North \
America and South America.
Name the oceans.;List the oceans.|The oceans are the Pacific, the Atlantic, the Indian, the Southern and the \
Arctic \
Ocean.
What are the points of the compass?;Name the four directions.|The four directions are north, east, south and \
west.
Name the five senses.;What are the five senses?|The five senses are sight, hearing, smell, taste and touch.
What are the primary colours?;Name the primary colors.|The primary colours are red, yellow and blue.
What are the first ten prime numbers?;List the first ten primes.|2, 3, 5, 7, 11, 13, 17, 19, 23, 29.
"""
