"""Writes images of many kinds into a folder, beside each the bytes of its square as torchvision would make it (NAME.rgb).
Prints a line "NAME SIZE" for each."""
import sys

import numpy
from PIL import Image

random = numpy.random.default_rng(1)


def noise(width, height, channels):
    # Smooth and rough at once, so that rounding and filters both show.
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [127 + 90 * numpy.sin(x / (3 + c) + y / (5 + c)) for c in range(channels)]
    values = numpy.stack(waves, axis=-1) + random.uniform(-30, 30, (height, width, channels))
    return values.clip(0, 255).astype(numpy.uint8)


def square(image, size):
    # torchvision's Resize(size) and CenterCrop(size): functional.py, _compute_resized_output_size and center_crop.
    width, height = image.size
    short, long = min(width, height), max(width, height)
    other = int(size * long / short)
    image = image.resize((size, other) if width <= height else (other, size), Image.BILINEAR)
    left, top = int(round((image.width - size) / 2.0)), int(round((image.height - size) / 2.0))
    return image.crop((left, top, left + size, top + size))


def put(name, image, size, **options):
    path = f"{sys.argv[1]}/{name}"
    image.save(path, **options)
    with open(path, "rb") as file, open(path + ".rgb", "wb") as out:
        out.write(square(Image.open(file).convert("RGB"), size).tobytes())
    print(name, size)


for i, (width, height, size) in enumerate(
        [(47, 33, 32), (33, 47, 32), (500, 375, 32), (375, 501, 224), (20, 31, 64), (32, 32, 32), (1, 9, 8), (64, 3, 7)]):
    put(f"{i}.png", Image.fromarray(noise(width, height, 3)), size)
rgb, gray, alpha = noise(90, 70, 3), noise(90, 70, 1)[:, :, 0], noise(90, 70, 4)
put("rgba.png", Image.fromarray(alpha, "RGBA"), 32)
put("la.png", Image.fromarray(alpha[:, :, :2].copy(), "LA"), 32)
put("gray.png", Image.fromarray(gray), 32)
put("one_bit.png", Image.fromarray(gray).convert("1"), 32)
put("palette.png", Image.fromarray(rgb).quantize(64), 32)
put("palette_transparent.png", Image.fromarray(rgb).quantize(16), 32, transparency=3)
put("gray.jpg", Image.fromarray(gray), 32, quality=85)
put("420.jpg", Image.fromarray(rgb), 32, quality=85)
put("422.jpg", Image.fromarray(rgb), 32, quality=75, subsampling="4:2:2")
put("444.jpg", Image.fromarray(rgb), 224, quality=95, subsampling="4:4:4")
put("progressive.jpg", Image.fromarray(rgb), 32, quality=85, progressive=True)
rotated = Image.Exif()
rotated[0x0112] = 6  # turned by 90 degrees, which torchvision ignores
put("exif.jpg", Image.fromarray(rgb), 32, quality=85, exif=rotated)
